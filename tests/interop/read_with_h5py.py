#!/usr/bin/env python3
"""Reads a UniShard checkpoint (format version 1) with h5py alone, from the text of format/SPEC.md.

    read_with_h5py.py TAG_FOLDER [--npz OUT.npz]

Every value passes through stock HDF5; every checksum of the manifest is recomputed. Prints the identity and exits 0,
or says what is wrong and exits 1.
"""
import argparse
import json
import os
import sys

import h5py
import numpy as np

NUMPY = {"float64": "<f8", "float32": "<f4", "float16": "<u2", "bfloat16": "<u2", "float8_e4m3fn": "u1",
         "float8_e5m2": "u1", "float8_e4m3fnuz": "u1", "float8_e5m2fnuz": "u1", "float8_e8m0fnu": "u1", "int64": "<i8", "int32": "<i4", "int16": "<i2", "int8": "i1", "uint64": "<u8",
         "uint32": "<u4", "uint16": "<u2", "uint8": "u1", "bool": "u1", "complex64": "<c8", "complex128": "<c16"}


def crc_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0xC96C5795D7870F42 if value & 1 else 0)
        table.append(value)
    return table


TABLE = crc_table()


def crc64(data, crc=0):
    crc ^= 0xFFFFFFFFFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFFFFFFFFFF


def check(condition, problem):
    if not condition:
        raise SystemExit(f"read_with_h5py: {problem}")


def read_manifest(folder):
    with open(os.path.join(folder, "manifest.json"), "rb") as file:
        first, rest = file.read().split(b"\n", 1)
    check(first == b'{"crc64":"%016x",' % crc64(rest), "manifest.json does not match its checksum")
    manifest = json.loads(first + rest)
    check(manifest["format"] == "unishard" and manifest["version"] == 1, "not format version 1")
    check(set(manifest["required_features"]) <= {"zstd", "shared", "boxes"}, "a required feature is unknown")  # HDF5 and its plug-in do both
    return manifest


def raw(data_set):
    """The stored values, small floats as their bit patterns instead of HDF5's conversion to float32."""
    dtype = data_set.attrs["dtype"].decode()
    out = np.empty(data_set.shape, NUMPY[dtype])
    memory_type = data_set.id.get_type() if dtype in ("float16", "bfloat16") else None
    data_set.id.read(h5py.h5s.ALL, h5py.h5s.ALL, out, memory_type)
    return out


def read_shard(path, entry, manifest, tensors):
    with h5py.File(path, "r") as file:
        check(file.attrs["save_id"].decode() == manifest["save_id"], f"{path} belongs to another save")
        check(file.attrs["rank"] == entry["rank"], f"{path} is another rank's shard")
        names = file["names"][...].tobytes()
        boxes = file["boxes"][...].tolist() if "boxes" in file else []
        sets = [raw(file["data"][f"{item['state']}.{item['dtype']}"]) for item in entry["data_sets"]]
        for row in file["index"][...]:
            info = manifest["tensors"][row["tensor"]]
            name = names[row["name_offset"]:row["name_offset"] + row["name_bytes"]].decode()
            check(name == info["fqn"] + "\0" + info["state"], f"{path}: row for {name!r} has another tensor's number")
            if row["data_set"] == 0xFFFFFFFF:
                continue  # derived: not stored
            target, at = tensors[row["tensor"]][int(row["begin"]):int(row["end"])], int(row["element_offset"])
            if boxes and row["box"]:
                axes, first = len(info["shape"]), int(row["box"])  # the word before is the contribution
                sides = zip(boxes[first:first + axes], boxes[first + axes:first + 2 * axes])
                target = tensors[row["tensor"]].reshape(info["shape"])[tuple(slice(low, low + size) for low, size in sides)]
            part = sets[row["data_set"]][at:at + target.size]
            check(crc64(part.tobytes()) == row["crc64"], f"{path}: {name!r} does not match its checksum")
            target[...] = part.reshape(target.shape)


def bfloat16_bits(values):
    bits = values.view("<u4").astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits | 0x400000) >> 16, rounded).astype("<u2")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--npz")
    arguments = parser.parse_args()
    manifest = read_manifest(arguments.folder)
    infos = manifest["tensors"]
    tensors = [np.zeros(int(np.prod(info["shape"], dtype=np.int64)), NUMPY[info["dtype"]]) for info in infos]
    for entry in manifest["shards"]:
        read_shard(os.path.join(arguments.folder, entry["file"]), entry, manifest, tensors)
    masters = {info["fqn"]: tensors[i] for i, info in enumerate(infos) if info["state"] == "fp32"}
    lines = []
    for info, values in zip(infos, tensors):
        if info.get("derived"):
            master = masters[info["fqn"]]
            values[:] = bfloat16_bits(master) if info["dtype"] == "bfloat16" else master.astype("<f2").view("<u2")
        check("%016x" % crc64(values.tobytes()) == info["crc64"], f"tensor {info['fqn']} [{info['state']}] does not match its checksum")
        shape = ",".join(str(size) for size in info["shape"])
        parts = (info["fqn"], info["state"], info["dtype"], shape, info["crc64"])
        lines.append((info["fqn"].encode(), info["state"].encode(), "\0".join(parts).encode() + b"\n"))
    identity = "%016x" % crc64(b"".join(line for _, _, line in sorted(lines)))
    check(identity == manifest["identity"], "the identity does not follow from the tensors")
    if arguments.npz:
        np.savez(arguments.npz, **{f"{i['fqn']}/{i['state']}": t.reshape(i["shape"]) for i, t in zip(infos, tensors)})
    print(f"{identity} {len(tensors)} tensors, step {manifest['step']}")


if __name__ == "__main__":
    sys.exit(main())
