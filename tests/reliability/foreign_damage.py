#!/usr/bin/env python3
"""Damage of the checkpoints of other programs: what changes a result is named.

    foreign_damage.py --bin BUILD/bin [--count N | --minutes M] [--seed N] [--long] [--keep FOLDER] [ROOT ...]

Each round changes one file of a checkpoint that a real library wrote (the folders of UNISHARD_FIXTURES, or each ROOT): it removes,
cuts, empties or zeroes the file, flips bits, takes bytes out, puts another file of the folder in its place or swaps
the two, or changes one number or name of a JSON file. `verify --deep`, `convert --to native` and `zero_to_fp32` then read the folder. A verb whose result changes must
fail or say something that it does not say of the undamaged folder, and `verify` must say something wherever one of the others has
another result. Nobody can see some damage, and it does not count: changed bytes that no checksum covers (safetensors, GGUF, swapped
states, legacy torch.save), a JSON file that is still JSON, and a file that is gone where no other file knows of it. Status 1: a
finding; --keep keeps its folder. Status 77: the fixtures are missing.
"""
import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

# Fields of a manifest that differ between two conversions of one input.
VOLATILE = ("crc64", "save_id", "saved_unix_seconds", "commit_number", "shards", "producer", "identity")
# Parts of the names of files that hold no weights, and lead to none.
NO_MODEL = ("optim", "sched", "scaler", "rng", "random", "sampler", "training_args", "trainer_state", "meta.pt", "common.pt")
INTERNAL = 5        # the exit status of an error of UniShard itself
LONGEST = 120       # seconds after which a verb hangs


class Outcome:
    """What a verb did with an input: its status, what it said, and a result that can be compared."""

    def __init__(self, status, said, result=None):
        self.status, self.said, self.result = status, said, result

    def tells(self, healthy):
        return self.status != healthy.status or bool(self.said - healthy.said)

    def is_crash(self):
        return self.status in (INTERNAL, LONGEST) or self.status < 0 or self.status > 128


def lists_of(text, keys):
    try:
        report = json.loads(text)
    except ValueError:
        return {text} if text else set()
    return {json.dumps(entry, sort_keys=True) for key in keys for entry in report.get(key) or []}


class Verbs:
    def __init__(self, binaries, folder):
        self.program, self.native, self.model = f"{binaries}/unishard", folder / "native", folder / "model.safetensors"

    def run(self, keys, *arguments):
        try:
            ended = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True, errors="replace",
                                   timeout=LONGEST, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return Outcome(LONGEST, {"it hangs"})
        said = lists_of(ended.stdout, keys) | {line for line in ended.stderr.splitlines() if line.strip()}
        return Outcome(ended.returncode, said)

    def verify(self, source):
        return self.run(("findings", "notes"), "verify", "--deep", "--json", source)

    def convert(self, source):
        shutil.rmtree(self.native, ignore_errors=True)
        outcome = self.run(("losses", "remarks", "left_out"), "convert", "--to", "native", "--no-check", "--json", "--threads", 1,
                              source, self.native)
        if outcome.status == 0:
            outcome.result = contents(self.native)
        return outcome

    def merge(self, source):
        self.model.unlink(missing_ok=True)
        outcome = self.run(("losses", "notes"), "zero_to_fp32", "--json", "--threads", 1, source, self.model)
        if outcome.status == 0:
            outcome.result = tensors_of(self.model)
        return outcome

    def all(self, source):
        return {"verify": self.verify(source), "convert": self.convert(source), "zero_to_fp32": self.merge(source)}


def contents(folder):
    """Manifest and side files of a native checkpoint, under names; tensors by their own."""
    found = {}
    for file in folder.rglob("*"):
        if not file.is_file() or file.suffix == ".h5" or file.name == "latest":
            continue
        if file.name != "manifest.json":
            found[f"file {file.name}"] = side_file(file)
            continue
        for key, value in json.loads(file.read_text()).items():
            if key == "tensors":
                for entry in value:
                    values = (entry.pop("crc64", None), str(entry.pop("stats", None)))
                    found[f"tensor {entry['fqn']} {entry['state']}"] = (json.dumps(entry), values)
            elif key not in VOLATILE:
                found[key] = json.dumps(value)
    return found


def side_file(file):
    """What a side file holds: the entries of an archive, whose padding does not matter, else its bytes."""
    try:
        with zipfile.ZipFile(file) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, RuntimeError):
        return hashlib.md5(file.read_bytes()).hexdigest()


def is_checked(file):
    """Whether checksums cover the file: those of archives of torch.save that were written with all of them."""
    try:
        with zipfile.ZipFile(file) as archive:
            return all(entry.CRC or not entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        return False


def is_json(file):
    try:
        json.loads(file.read_bytes())
        return True
    except ValueError:
        return False


def tensors_of(model):
    data = model.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8:end]).items():
        if name == "__metadata__":
            continue
        begin, stop = entry.pop("data_offsets")
        found[f"tensor {name}"] = (json.dumps(entry), hashlib.md5(data[end + begin:end + stop]).hexdigest())
    return found


def differences(result, healthy):
    if result is None or healthy is None:
        return []
    return sorted(name for name in result.keys() | healthy.keys() if result.get(name) != healthy.get(name))


def change_json(chance, file):
    """Changes a number or a name of a JSON file; None where it has neither."""
    places = []

    def visit(node):
        for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
            if isinstance(value, (dict, list)):
                visit(value)
            places.append((node, key))

    try:
        root = json.loads(file.read_text())
    except ValueError:
        return None
    if not isinstance(root, (dict, list)):
        return None
    visit(root)
    if not places:
        return None
    node, key = chance.choice(places)
    if isinstance(node[key], (int, float)) and not isinstance(node[key], bool):
        node[key] += chance.choice((1, -1, 1000))
    elif isinstance(node, dict):
        node[f"{key}x"] = node.pop(key)
    else:
        del node[key]
    file.write_text(json.dumps(root))
    return f"the JSON entry {key!r}"


def damage(chance, file, others):
    """Changes the file and says how; None where this kind of damage does not apply to it."""
    kind = chance.choice(("remove", "empty", "half", "cut", "zeros", "zero", "flip", "flip", "flip", "edge", "edge", "hole", "other", "swap", "json"))
    size = file.stat().st_size
    if kind == "remove":
        file.unlink()
        return "removed"
    if kind == "json":
        return change_json(chance, file) if file.suffix == ".json" else None
    if kind in ("other", "swap"):
        alike = [other for other in others if other != file and other.suffix == file.suffix]
        if not alike:
            return None
        other = chance.choice(alike)
        if kind == "swap":
            aside = file.rename(file.with_name("aside"))
            other.rename(file)
            aside.rename(other)
            return f"swapped with {other.name}"
        shutil.copyfile(other, file)
        return f"replaced by {other.name}"
    if not size:
        return None
    if kind in ("empty", "half", "cut"):
        left = {"empty": 0, "half": size // 2, "cut": max(0, size - chance.choice((1, 7, 64, 511, 4096)))}[kind]
        os.truncate(file, left)
        return f"cut to {left} bytes"
    data = bytearray(file.read_bytes())
    at, length = chance.randrange(size), chance.choice((1, 4, 16, 64, 256))
    if kind == "zeros":
        data[:], text = bytes(size), "zeroed"
    elif kind == "zero":
        data[at:at + length], text = bytes(len(data[at:at + length])), f"{length} bytes at {at} zeroed"
    elif kind == "hole":
        del data[at:at + length]
        text = f"{length} bytes at {at} taken out"
    else:
        if kind == "edge":  # headers and directories
            at = chance.randrange(min(size, 1500))
            at = at if chance.random() < 0.6 else size - 1 - at
        bit = chance.randrange(8)
        data[at] ^= 1 << bit
        text = f"bit {bit} of byte {at} flipped"
    file.write_bytes(data)
    return text


def copy(source, target):
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
    subprocess.run(["chmod", "-R", "u+w", target], check=True)


class Campaign:
    def __init__(self, binaries, chance, keep, folder):
        self.verbs, self.chance, self.keep, self.work = Verbs(binaries, folder), chance, keep, folder / "input"
        self.tried = self.findings = 0
        self.healthy = {}

    def healthy_of(self, root):
        """The outcomes of the undamaged folder, or of each of its files where the folder itself is no checkpoint."""
        if root not in self.healthy:
            copy(root, self.work)
            outcomes = self.verbs.all(self.work)
            if outcomes["convert"].status == 0:
                self.healthy[root] = [("", outcomes)]
            else:
                files = sorted(path.relative_to(root) for path in root.rglob("*")
                               if path.suffix in (".pt", ".pth", ".bin", ".safetensors", ".npz", ".h5", ".gguf"))
                each = [(file, self.verbs.all(self.work / file)) for file in files[:20]]
                self.healthy[root] = [(file, outcomes) for file, outcomes in each if outcomes["convert"].status == 0]
        return self.healthy[root]

    def try_one(self, root):
        inputs = self.healthy_of(root)
        if not inputs:
            return
        place, healthy = self.chance.choice(inputs)
        copy(root, self.work)
        files = sorted(path for path in self.work.rglob("*") if path.is_file() and not path.is_symlink())
        file = self.work / place if place else self.chance.choice(files)
        before, checked = file.read_bytes(), is_checked(file)
        how = damage(self.chance, file, [] if place else files)
        if how is None or (file.exists() and file.read_bytes() == before):
            return
        self.tried += 1
        damaged = self.verbs.all(self.work / place)
        found = self.judge(damaged, healthy, lambda name: self.is_invisible(file, checked, how, name))
        if healthy["zero_to_fp32"].status == 0 != damaged["zero_to_fp32"].status and self.needs_no(file, healthy, place):
            found.append("zero_to_fp32 fails, and the model does not need the file")
        if found:
            self.findings += 1
            print(f"FINDING {root.parent.name}/{root.name}/{file.relative_to(self.work)}: {how}: {'; '.join(found)}", flush=True)
            if self.keep:
                copy(self.work, self.keep / f"{self.findings}")

    def needs_no(self, file, healthy, place):
        """Whether zero_to_fp32 has the same result without a file of something else than the model."""
        if not file.exists() or place or not any(part in file.name for part in NO_MODEL):
            return False
        aside = file.rename(self.work.parent / "aside")
        without = self.verbs.merge(self.work)
        aside.rename(file)
        return without.status == 0 and not differences(without.result, healthy["zero_to_fp32"].result)

    def is_invisible(self, file, checked, how, name):
        """Whether nobody can see that the damage made the difference `name`."""
        if how == "removed":
            return not any(letter.isdigit() for letter in file.name) or file.suffix == ".json"
        if file.suffix == ".json" and is_json(file):
            return name == f"file {file.name}" or not name.startswith("tensor ")
        return not checked and (how.startswith("swapped") or (how.endswith(("flipped", "zeroed")) and how != "zeroed"))

    @staticmethod
    def judge(damaged, healthy, is_invisible):
        found, silent = [], []
        for verb, outcome in damaged.items():
            if outcome.is_crash():
                found.append(f"{verb} ends with status {outcome.status}: {sorted(outcome.said)[:2]}")
        for verb in ("convert", "zero_to_fp32"):
            names = [name for name in differences(damaged[verb].result, healthy[verb].result) if not is_invisible(name)]
            if names and not damaged[verb].tells(healthy[verb]):
                found.append(f"{verb} is silent about {', '.join(names[:3])}")
            silent += names
        if silent and not damaged["verify"].tells(healthy["verify"]):
            found.append(f"verify is silent about {', '.join(silent[:3])}")
        return found


def fixtures():
    root = Path(os.environ.get("UNISHARD_FIXTURES", Path(__file__).resolve().parents[3] / "shared" / "fixtures"))
    golden = Path(__file__).resolve().parents[1] / "golden" / "trainer"
    return sorted([path for pattern in ("*/*/checkpoint", "*/*/input") for path in root.glob(pattern)
                   if path.is_dir() and path.parent.name != "hostile"] + [path for path in golden.iterdir() if path.is_dir()])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", nargs="*", type=lambda text: Path(text).resolve(), metavar="ROOT")
    parser.add_argument("--bin", required=True)
    parser.add_argument("--count", type=int)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    roots = options.roots or fixtures()
    if not roots:
        print("SKIPPED: the fixtures are missing (UNISHARD_FIXTURES)")
        return 77
    count = options.count or (30_000 if options.long else 150)
    ends = time.monotonic() + options.minutes * 60 if options.minutes else None
    with tempfile.TemporaryDirectory(prefix="unishard-damage-") as folder:
        campaign = Campaign(options.bin, random.Random(options.seed), options.keep, Path(folder))
        while time.monotonic() < ends if ends else campaign.tried < count:
            campaign.try_one(campaign.chance.choice(roots))
    print(f"foreign damage | {campaign.tried} | {campaign.findings} | seed {options.seed}")
    return 1 if campaign.findings else 0


if __name__ == "__main__":
    sys.exit(main())
