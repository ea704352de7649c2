#!/usr/bin/env python3
"""Stock h5py reads the HDF5 files that `unishard convert --to hdf5` writes, and writes ones for it to read.

    hdf5_exchange.py UNISHARD=CHECKPOINT

Compares every value with the safetensors file made of the same checkpoint. Prints "equal" and counts and exits 0, or
says what is wrong and exits 1.
"""
import json
import os
import subprocess
import sys
import tempfile

import h5py
import numpy as np

RAW = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
       "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?", "C64": "<c8"}


def check(condition, problem):
    if not condition:
        raise SystemExit(f"hdf5_exchange: {problem}")


def read_safetensors(path):
    """{name: array}, {name: dtype}; bfloat16 widened to float32."""
    with open(path, "rb") as file:
        data = file.read()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    arrays, types = {}, {}
    for name, row in header.items():
        if name == "__metadata__":
            continue
        begin, end = row["data_offsets"]
        array = np.frombuffer(data[8 + size + begin:8 + size + end], RAW[row["dtype"]])
        if row["dtype"] == "BF16":
            array = (array.astype("<u4") << 16).view("<f4")
        array = array.reshape(row["shape"])
        arrays[name], types[name] = array, row["dtype"]
    return arrays, types


def same_values(a, b):
    return a.shape == b.shape and np.array_equal(np.asarray(a), np.asarray(b))


class Work:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, *arguments, status=0):
        done = subprocess.run([self.program, *arguments], capture_output=True, text=True)
        check(done.returncode == status, f"{' '.join(arguments)}: {done.returncode}: {done.stderr}")
        return done

    def convert(self, source, name, form, *options):
        return self.run("convert", source, self.path(name), "--to", form, "--quiet", *options).stderr

    def refuses_missing(self, source, form):
        """Arrays that might be weights and cannot be read are an error, unless --allow-missing is given."""
        done = subprocess.run([self.program, "convert", source, self.path("refused"), "--to", form], capture_output=True, text=True)
        check(done.returncode == 6 and "would be missing" in done.stderr, f"not refused: {done.returncode}: {done.stderr}")


def data_sets(file):
    found = {}

    def add(name, item):
        if isinstance(item, h5py.Dataset) and name != "unishard.catalog":
            found[name] = item
    file.visititems(add)  # each object once
    return found


def h5py_reads_ours(work, checkpoint):
    work.convert(checkpoint, "ours.h5", "hdf5")
    work.convert(checkpoint, "same.safetensors", "safetensors")
    arrays, types = read_safetensors(work.path("same.safetensors"))
    aliases = json.loads(work.run("inspect", checkpoint, "--json").stdout)["aliases"]
    with h5py.File(work.path("ours.h5"), "r") as file:
        text = json.loads(file["unishard.catalog"][()])
        check(text["step"] > 0 and len(text["tensors"]) == len(arrays), "the catalog's text is not whole")
        second = set(aliases)
        check(set(file) - {"unishard.catalog"} == set(arrays) | second, "names differ")
        for name, array in arrays.items():
            data = file[name]
            check(data.shape == array.shape, f"{name}: shape {data.shape}, not {array.shape}")
            check(same_values(data[()], array), f"{name}: values differ")
            if types[name] == "BOOL":
                check(data.dtype == np.bool_, f"{name}: {data.dtype} is not bool")
        check(len(aliases) > 0, "the checkpoint has no tied names")
        for name, target in aliases.items():
            check(file[name] == file[target], f"{name} is not the object {target}")
    return len(arrays), len(aliases)


def write_foreign(path):
    """A file with what h5py users make; returns what it should be read as."""
    random = np.random.default_rng(1)
    expected = {}
    with h5py.File(path, "w", userblock_size=1024) as file:
        def add(name, array, **options):
            file.create_dataset(name, data=array, **options)
            expected[name] = array.astype(array.dtype.newbyteorder("<"))
        floats = random.standard_normal((37, 19, 5))
        add("plain", floats.astype("<f4"))
        add("layers/0/kernel", floats.astype("<f8"), chunks=(8, 7, 3))
        add("layers/0/bias", floats[0].astype("<f4"), chunks=(5, 5), compression="gzip", shuffle=True,
            fletcher32=True)
        add("layers/1/kernel", floats.astype("<f2"), compression="gzip", compression_opts=9)
        add("layers/1/lzf_is_a_filter_of_h5py", floats.astype("<f4"))
        add("big/float", floats.astype(">f4"))
        add("big/double_packed", floats.astype(">f8"), chunks=(3, 19, 5), compression="gzip")
        add("big/integer", random.integers(-2**60, 2**60, (11, 3)).astype(">i8"))
        add("big/half", floats.astype(">f2"))
        add("mask", random.integers(0, 2, (6, 7)).astype(bool))
        add("mask_packed", random.integers(0, 2, (60, 7)).astype(bool), chunks=(10, 7), compression="gzip")
        add("complex", (floats + 1j * floats[::-1]).astype("<c8"))
        add("complex_big", (floats - 2j * floats).astype(">c8"))
        add("bytes", random.integers(0, 256, 100).astype("u1"))
        add("scalar", np.array(7, "<i4"))
        add("big/scalar", np.array(7.5, ">f8"))
        add("empty", np.zeros((0, 3), "<f4"))
        add("empty_resizable", np.zeros((0, 3), "<f4"), maxshape=(None, 3))
        file.create_dataset("never_written", (4, 5), "<f4", fillvalue=2.5)
        expected["never_written"] = np.full((4, 5), 2.5, "<f4")
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((5,))
        h5py.h5d.create(file.id, b"compact", h5py.h5t.STD_I16LE, space, compact).write(
            h5py.h5s.ALL, h5py.h5s.ALL, np.arange(5, dtype="<i2"))
        expected["compact"] = np.arange(5, dtype="<i2")
        brain = h5py.h5t.IEEE_F32BE.copy()
        brain.set_fields(15, 7, 8, 0, 7)
        brain.set_size(2)
        brain.set_ebias(127)
        rounded = (floats[0].astype("<f4").view("<u4") & 0xFFFF0000).view("<f4")
        h5py.h5d.create(file.id, b"brain_float", brain, h5py.h5s.create_simple(rounded.shape)).write(
            h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(rounded))
        expected["brain_float"] = rounded
        file["tied"] = file["plain"]
        # What is no tensor: each must be named and none followed.
        file["soft"] = h5py.SoftLink("/plain")
        file["outside"] = h5py.ExternalLink("/etc/passwd", "/x")
        file["layers/loop"] = file["layers"]
        file["words"] = np.array(["a", "b"], dtype=h5py.string_dtype())
        file["words_fixed"] = np.array([b"a", b"b"])
        file["records"] = np.zeros(3, dtype=[("x", "<i4"), ("y", "<f8")])
        file["references"] = np.array([file["plain"].ref], dtype=h5py.ref_dtype)
        file["nothing"] = h5py.Empty("f4")
        file["lzf"] = 0
        del file["lzf"]
        file.create_dataset("lzf", data=floats, compression="lzf")
        layout = h5py.VirtualLayout(shape=(4,), dtype="f4")
        layout[:] = h5py.VirtualSource("/nowhere.h5", "x", shape=(4,))
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("elsewhere", (4,), "<f4", external=[("/etc/passwd", 0, 16)])
        file.attrs["model_config"] = "{}"
    return expected


LEFT_OUT = ["soft", "outside", "layers/loop", "words", "words_fixed", "records", "references", "nothing", "lzf",
            "virtual", "elsewhere", "model_config"]


def we_read_h5pys(work):
    expected = write_foreign(work.path("theirs.h5"))
    work.refuses_missing(work.path("theirs.h5"), "npz")
    notes = work.convert(work.path("theirs.h5"), "theirs.safetensors", "safetensors", "--allow-missing")
    for name in LEFT_OUT:
        check(any(name in line for line in notes.splitlines()), f"{name} is left out without a note: {notes}")
    arrays, types = read_safetensors(work.path("theirs.safetensors"))
    check(set(arrays) == set(expected), f"names differ: {set(arrays) ^ set(expected)}")
    for name, array in expected.items():
        check(same_values(arrays[name], array), f"{name}: values differ")
        wanted = "BF16" if name == "brain_float" else next(key for key, raw in RAW.items()
                                                           if np.dtype(raw) == array.dtype and key != "BF16")
        check(types[name] == wanted, f"{name}: {types[name]}, not {wanted}")
    seen = json.loads(work.run("inspect", work.path("theirs.h5"), "--json").stdout)
    check(seen["format"] == "hdf5" and seen["aliases"] == {"tied": "plain"}, f"inspect says {seen['aliases']}")
    work.convert(work.path("theirs.h5"), "again.h5", "hdf5", "--allow-missing")
    work.run("verify", work.path("again.h5"), "--deep")
    with h5py.File(work.path("again.h5"), "r") as file:
        check(set(data_sets(file)) >= set(expected), "names are lost in a second file")
        for name, array in expected.items():
            check(same_values(file[name][()], array), f"{name}: values differ in a second file")
    return len(expected), len(LEFT_OUT)


def main():
    program, checkpoint = sys.argv[1].split("=")
    with tempfile.TemporaryDirectory() as folder:
        work = Work(program, folder)
        read, tied = h5py_reads_ours(work, checkpoint)
        written, left_out = we_read_h5pys(work)
    print(f"equal : h5py {h5py.__version__} read {read} data sets and {tied} tied names of ours; "
          f"{written} of its own were read, {left_out} things in it named as left out")


if __name__ == "__main__":
    main()
