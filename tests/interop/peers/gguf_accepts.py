#!/usr/bin/env python3
"""The gguf package of llama.cpp reads the files that `unishard convert --to gguf` writes, and writes ones for it to read.

  gguf_accepts.py BUILD

Exit status: 0 all equal, 1 something differs, 77 the package is not installed.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import gguf
    import numpy as np
except ImportError:
    print("skipped: no gguf package")
    sys.exit(77)

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden/v1/global_step7"


def check(condition, problem):
    if not condition:
        raise SystemExit(f"gguf_accepts: {problem}")


class Work:
    def __init__(self, build, folder):
        self.program, self.folder = pathlib.Path(build) / "bin/unishard", pathlib.Path(folder)

    def run(self, *arguments, status=0):
        done = subprocess.run([self.program, *arguments], capture_output=True, text=True)
        check(done.returncode == status, f"{arguments}: status {done.returncode}: {done.stdout} {done.stderr}")
        return done.stdout + done.stderr

    def convert(self, source, name, form, *options, status=0):
        return self.run("convert", source, self.folder / name, "--to", form, "--quiet", *options, status=status)


def tensors_of(path):
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def values_of(path):
    """{key: value} of a file, without the counts that the reader adds."""
    return {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items() if not key.startswith("GGUF.")}


def safetensors_of(path):
    """{name: (dtype, shape, bytes)}"""
    data = pathlib.Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    rows = json.loads(data[8:8 + size])
    rows.pop("__metadata__", None)
    return {name: (row["dtype"], row["shape"], data[8 + size + row["data_offsets"][0]:8 + size + row["data_offsets"][1]])
            for name, row in rows.items()}


def gguf_reads_ours(work):
    compared = 0
    for dtype, number in (("fp32", 0), ("fp16", 1), ("bf16", 32)):
        options = ("--weights-only", "--dtype", dtype, "--only", "*.weight", "--only", "*.bias")
        work.convert(GOLDEN, f"{dtype}.gguf", "gguf", *options)
        work.convert(GOLDEN, f"{dtype}.safetensors", "safetensors", *options)
        tensors, expected = tensors_of(work.folder / f"{dtype}.gguf"), safetensors_of(work.folder / f"{dtype}.safetensors")
        check(set(tensors) == set(expected) and expected, f"{dtype}: names differ: {set(tensors) ^ set(expected)}")
        for name, (kind, shape, data) in expected.items():
            check([int(size) for size in reversed(tensors[name].shape)] == shape, f"{dtype}: {name}: {tensors[name].shape}")
            check(tensors[name].tensor_type.name == kind, f"{dtype}: {name}: {tensors[name].tensor_type}")
            check(tensors[name].data.tobytes() == data, f"{dtype}: {name}: values differ")
        check(values_of(work.folder / f"{dtype}.gguf")["general.file_type"] == number, f"{dtype}: general.file_type")
        compared += len(expected)
    return compared


def write_theirs(path):
    """Returns {name: array} and {key: value}."""
    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_uint64("test.large", 2**64 - 1)
    writer.add_int8("test.small", -7)
    writer.add_float64("test.double", 0.1)
    writer.add_bool("test.flag", True)
    writer.add_token_list(["<s>", "ä", "b"])
    writer.add_token_scores([0.5, -1.5, 3.0])
    writer.add_array("test.numbers", [1, 2, 3])
    arrays = {f"t.{kind}": random.integers(-100, 100, (3, 5, 2)).astype(kind)
              for kind in ("float32", "float16", "float64", "int8", "int16", "int32", "int64")}
    arrays |= {"blk.0.attn_q.weight": random.standard_normal((64, 32)).astype("float32"),
               "output_norm.weight": np.ones(32, "float32"), "four": random.standard_normal((2, 3, 4, 5)).astype("float16")}
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    bits = (random.standard_normal((6, 4)).astype("float32").view("<u4") >> 16).astype("<u2")
    writer.add_tensor("brain", bits.view("u1"), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return arrays, bits


def we_read_theirs(work):
    path = work.folder / "theirs.gguf"
    arrays, bits = write_theirs(path)
    work.convert(path, "theirs.safetensors", "safetensors")
    found = safetensors_of(work.folder / "theirs.safetensors")
    check(set(found) == set(arrays) | {"brain"}, f"names differ: {set(found) ^ set(arrays)}")
    for name, array in arrays.items():
        check(found[name][1] == list(array.shape) and found[name][2] == array.tobytes(), f"{name}: values differ")
    check(found["brain"] == ("BF16", [6, 4], bits.tobytes()), "bfloat16 differs")
    work.run("verify", path, "--deep")
    # Through a native checkpoint and back: tensors and metadata as they were.
    work.convert(path, "native", "native")
    work.convert(work.folder / "native", "again.gguf", "gguf")
    before, after = values_of(path), values_of(work.folder / "again.gguf")
    after.pop("general.file_type")
    check(before == after, f"metadata differ: {before} {after}")
    again = tensors_of(work.folder / "again.gguf")
    for name, tensor in tensors_of(path).items():
        same = [again[name].tensor_type, list(again[name].shape), again[name].data.tobytes()]
        check(same == [tensor.tensor_type, list(tensor.shape), tensor.data.tobytes()], f"{name}: differs in a second file")
    return len(again), len(before)


def quantized_are_refused(work):
    path = work.folder / "quantized.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    weights = np.random.default_rng(2).standard_normal((4, 64)).astype("float32")
    writer.add_tensor("plain", weights)
    writer.add_tensor("blk.0.ffn_up.weight", gguf.quantize(weights, gguf.GGMLQuantizationType.Q8_0),
                      raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    message = work.convert(path, "never", "native", status=6)
    check("blk.0.ffn_up.weight" in message and "Q8_0" in message and "llama-quantize" in message, message)


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = Work(sys.argv[1], folder)
        read = gguf_reads_ours(work)
        written, keys = we_read_theirs(work)
        quantized_are_refused(work)
    print(f"GGUFReader reads {read} tensors of ours; {written} tensors and {keys} keys of GGUFWriter are read and written again")


if __name__ == "__main__":
    main()
