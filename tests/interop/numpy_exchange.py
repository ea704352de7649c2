#!/usr/bin/env python3
"""Real numpy reads the archives that `unishard convert --to npz` writes, and writes ones for it to read.

    numpy_exchange.py UNISHARD=CHECKPOINT

Compares every value with the safetensors file made of the same checkpoint. Prints "equal" and counts and exits 0,
or says what is wrong and exits 1. Where ml_dtypes is installed, its types are asked too.
"""
import json
import sys
import tempfile

import numpy as np

from hdf5_exchange import RAW, Work, check, read_safetensors, same_values

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None


def numpy_reads_ours(work, checkpoint):
    work.convert(checkpoint, "ours.npz", "npz")
    work.convert(checkpoint, "same.safetensors", "safetensors")
    arrays, types = read_safetensors(work.path("same.safetensors"))
    with np.load(work.path("ours.npz"), allow_pickle=False) as file:
        text = json.loads(file["unishard.catalog"].tobytes())
        check(text["step"] > 0 and len(text["tensors"]) == len(arrays), "the catalog's text is not whole")
        check(set(file.files) - {"unishard.catalog"} == set(arrays), "names differ")
        for name, array in arrays.items():
            data = file[name]
            if types[name] == "BF16":
                check(data.dtype == np.dtype("V2"), f"{name}: {data.dtype} is not what ml_dtypes makes of bfloat16")
                bits = data.reshape(-1).view("<u2").astype("<u4") << np.uint32(16)
                data = bits.view("<f4").reshape(data.shape)
            check(data.shape == array.shape, f"{name}: shape {data.shape}, not {array.shape}")
            check(same_values(data, array), f"{name}: values differ")
    work.convert(work.path("ours.npz"), "back", "native")
    work.run("diff", checkpoint, work.path("back"))
    return len(arrays)


def foreign_arrays():
    """What numpy's users save; {name: array}."""
    random = np.random.default_rng(1)
    floats = random.standard_normal((37, 19, 5))
    arrays = {"plain": floats.astype("<f4"), "half": floats.astype("<f2"), "double": floats,
              "big": floats.astype(">f4"), "big_integers": random.integers(-2**60, 2**60, (11, 3)).astype(">i8"),
              "fortran": np.asfortranarray(floats.astype("<f4")),
              "fortran_matrix": np.asfortranarray(random.standard_normal((311, 127))),
              "fortran_big": np.asfortranarray(floats.astype(">f8")),
              "transposed": random.standard_normal((5, 9)).T, "strided": floats[::2, ::3],
              "mask": random.integers(0, 2, (6, 7)).astype(bool), "complex": (floats + 1j * floats[::-1]).astype("<c8"),
              "scalar": np.array(7, "<i4"), "number": np.float64(7.5), "empty": np.zeros((0, 3), "<f4"),
              "layers/0/kernel": floats.astype("<f4"), "b.npy": np.arange(3), "ü": np.arange(4), "arr_0": np.arange(5)}
    for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"):
        arrays[kind] = random.integers(0, 100, (4, 3)).astype(kind)
    return arrays


def we_read_numpys(work):
    arrays = foreign_arrays()
    odd = {"labels": np.array(["a", "b"]), "objects": np.array([None, {}], dtype=object),
           "times": np.array(["2020-01-01"], dtype="M8[s]"), "records": np.zeros(3, dtype=[("x", "<i4")]),
           "long_double": np.zeros(2, np.longdouble)}
    for save, name in ((np.savez, "stored.npz"), (np.savez_compressed, "deflated.npz")):
        save(work.path(name), **arrays, **odd)
        work.refuses_missing(work.path(name), "hdf5")
        notes = work.convert(work.path(name), name + ".safetensors", "safetensors", "--allow-missing")
        for left_out in odd:
            check(left_out in notes, f"{left_out} is left out without a note: {notes}")
        found, types = read_safetensors(work.path(name + ".safetensors"))
        check(set(found) == set(arrays), f"names differ: {set(found) ^ set(arrays)}")
        for key, array in arrays.items():
            check(same_values(found[key], array), f"{name}: {key}: values differ")
            check(np.dtype(RAW[types[key]]) == array.dtype.newbyteorder("<"), f"{key}: {types[key]}, not {array.dtype}")
        said = json.loads(work.run("verify", work.path(name), "--deep", "--json", status=1).stdout)
        check({problem["code"] for problem in said["findings"]} == {"incomplete"}, f"verify says {said}")
        work.convert(work.path(name), name + ".again.npz", "npz", "--allow-missing")
        compared = json.loads(work.run("diff", work.path(name), work.path(name + ".again.npz"), "--json", status=1).stdout)
        check({row["kind"] for row in compared["differences"]} == {"unread"}, f"diff says {compared}")
        with np.load(work.path(name + ".again.npz"), allow_pickle=False) as file:
            check(set(file.files) == set(arrays), f"names are lost in a second file: {set(file.files) ^ set(arrays)}")
            for key, array in arrays.items():
                check(same_values(file[key], array) and file[key].dtype == array.dtype.newbyteorder("<"),
                      f"{key}: values differ in a second file")
    np.save(work.path("one.npy"), arrays["fortran"])
    work.convert(work.path("one.npy"), "one.npz", "npz")
    with np.load(work.path("one.npz"), allow_pickle=False) as file:
        check(file.files == ["one"] and same_values(file["one"], arrays["fortran"]), ".npy: values differ")
    return len(arrays)


def types_of_ml_dtypes(work):
    """bfloat16 and 8-bit floats, from numpy and back to it."""
    if ml_dtypes is None:
        return 0
    numbers = np.linspace(-3, 3, 64).reshape(8, 8)
    arrays = {name: numbers.astype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e5m2")}
    np.savez(work.path("ml.npz"), **arrays)
    work.convert(work.path("ml.npz"), "ml.safetensors", "safetensors")
    types = types_in(work.path("ml.safetensors"))
    check(types == {"bfloat16": "BF16", "float8_e5m2": "F8_E5M2"}, f"types of ml_dtypes are read as {types}")
    work.convert(work.path("ml.safetensors"), "ml_again.npz", "npz")
    with np.load(work.path("ml_again.npz"), allow_pickle=False) as file:
        for name, array in arrays.items():
            check(np.array_equal(file[name].view(array.dtype), array), f"{name}: values differ")
    work.convert(work.path("ml_again.npz"), "ml_back.safetensors", "safetensors")
    work.run("diff", work.path("ml.safetensors"), work.path("ml_back.safetensors"))
    return len(arrays)


def types_in(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: row["dtype"] for name, row in header.items() if name != "__metadata__"}


def main():
    program, checkpoint = sys.argv[1].split("=")
    with tempfile.TemporaryDirectory() as folder:
        work = Work(program, folder)
        read = numpy_reads_ours(work, checkpoint)
        written = we_read_numpys(work)
        odd = types_of_ml_dtypes(work)
    print(f"equal : numpy {np.__version__} read {read} arrays of ours; {written} of its own were read, stored and deflated; "
          f"{odd} types of ml_dtypes")


if __name__ == "__main__":
    main()
