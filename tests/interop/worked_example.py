#!/usr/bin/env python3
"""Checks the hexadecimal example of format/SPEC.md, section 10, against the golden checkpoint that it describes.

    worked_example.py SPEC.md TAG_FOLDER

A line of the example is OFFSET, bytes, type, value and meaning. The bytes must be the file's, the value must be what the type makes
of them, each table row must be whole, the offsets must be the manifest's, and the checksums must be those of the bytes they cover.
Standard library only. Exits 0, or says what is wrong and exits 1.
"""
import json
import os
import re
import struct
import sys

LINE = re.compile(r"^    ([0-9a-f]{8})  ((?:[0-9a-f]{2} )+) *(text|u32|u64|crc|f32|f64)  +(\S+)  +(\S.*)$")
NUMBERS = {"u32": "<I", "u64": "<Q", "f32": "<f", "f64": "<d"}


def check(condition, problem):
    if not condition:
        raise SystemExit(f"worked_example: {problem}")


def crc64(data):
    crc = 0xFFFFFFFFFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xC96C5795D7870F42 if crc & 1 else 0)
    return "%016x" % (crc ^ 0xFFFFFFFFFFFFFFFF)


def decoded(kind, data):
    if kind == "text":
        return data.decode().replace("\0", "␀")
    if kind == "crc":
        return "%016x" % struct.unpack("<Q", data)[0]
    value = struct.unpack(NUMBERS[kind], data)[0]
    return "%.9g" % value if kind == "f32" else repr(value)


def lines_of(section):
    """The example's lines as {offset: (bytes, type, value)}. Every line that looks like one must be one."""
    lines = {}
    for text in section.splitlines():
        if not re.match(r"^    [0-9a-f]{8} ", text):
            continue
        match = LINE.match(text)
        check(match, f"this line of the example is not OFFSET, bytes, type, value and meaning: {text!r}")
        offset = int(match[1], 16)
        check(offset not in lines, f"offset {match[1]} is explained twice")
        lines[offset] = (bytes.fromhex(match[2]), match[3], match[4])
    return lines


def check_covered(lines, begin, end, what):
    at = begin
    while at < end:
        check(at in lines, f"{what}: no line explains the bytes from {at:08x}")
        at += len(lines[at][0])
    check(at == end, f"{what}: the explanation ends at {at:08x}, not at {end:08x}")


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        section = file.read().split("\n## 10. Worked example\n")[1].split("\n## ")[0]
    with open(os.path.join(sys.argv[2], "manifest.json"), encoding="utf-8") as file:
        manifest_text = file.read()
    manifest = json.loads(manifest_text)
    entry = manifest["shards"][0]
    with open(os.path.join(sys.argv[2], entry["file"]), "rb") as file:
        shard = file.read()

    lines = lines_of(section)
    for offset, (data, kind, value) in lines.items():
        stored = shard[offset:offset + len(data)]
        check(stored == data, f"the file has {stored.hex(' ')} at {offset:08x}, the example {data.hex(' ')}")
        check(decoded(kind, data) == value, f"the {kind} at {offset:08x} is {decoded(kind, data)}, the example says {value}")

    data_set = entry["data_sets"][2]
    row, chunk = entry["index_offset"], data_set["chunks_offset"]
    check_covered(lines, 0, 56, "user block")
    check_covered(lines, 4088, 4096, "user block's checksum")
    check_covered(lines, row, row + 96, "row 0 of /index")
    check_covered(lines, entry["names_offset"], entry["names_offset"] + 15, "name of row 0")
    check_covered(lines, chunk, chunk + 24, "row 0 of the chunk table")
    check_covered(lines, data_set["offset"], data_set["offset"] + 16, "first elements of the payload")

    check(lines[4088][2] == crc64(shard[:4088]), "the user block's checksum is not that of its bytes")
    tensor = shard[data_set["offset"]:data_set["offset"] + 2048 * 4]
    check(lines[row + 32][2] == crc64(tensor), "the fragment's checksum is not that of its bytes")
    stored = int(lines[chunk + 8][2])
    check(lines[chunk + 16][2] == crc64(shard[data_set["offset"]:data_set["offset"] + stored]), "the chunk's checksum is not that of its bytes")

    quoted = [text.strip() for text in section.splitlines() if text.startswith("    ") and '"' in text]
    check(len(quoted) == 6, f"the example quotes {len(quoted)} lines of the manifest, not 6")
    flat = manifest_text.replace("\n", "")
    check(flat.startswith(quoted[0] + quoted[1]), "the manifest does not begin as the example says")
    for text in quoted:
        check(text in flat, f"the manifest does not contain {text}")
    print(f"{len(lines)} ranges of bytes and {len(quoted)} lines of the manifest are as the example says")


if __name__ == "__main__":
    sys.exit(main())
