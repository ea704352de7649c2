#!/usr/bin/env python3
"""Crash states of a real ext4: its block device records every write and every flush, and power is cut between any two of them.

    ext4.py --bin BUILD/bin [--count N] [--long] [--seed N] [--teeth]

The device is a loop device over a file that this program serves (FUSE). Tools and two ranks of train_gpt work on the file
system and report when they are done. A crash state is the device with all writes before its last flush, and all, none or some
of the writes after it, whole or cut at 512 bytes. The kernel then mounts the state and replays its journal. What was reported
before the last flush must be there; all that has a final name must pass `verify --deep --all`; `latest` must never go back.
--teeth runs the programs with fsync() switched off (eatmydata); then a state must fail.
Status 1: a finding. Status 77: not root, or fusepy, losetup or mount are missing.
"""
import argparse
import errno
import hashlib
import os
import random
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kills import Finding, Tools, check, training_arguments, visible, write_training_inputs

DEVICE_BYTES = 48 << 20
WRITE, FLUSH, MARK = range(3)
RECORD = struct.Struct("<BQQ")  # kind, offset, length of the data that follows


# ---- the device ------------------------------------------------------------------------------------------------------

def import_fuse():
    sys.path.append("/usr/lib/python3/dist-packages")  # where Debian installs python3-fusepy
    try:
        import fusepy
        return fusepy
    except ImportError:
        import fuse
        return fuse


def serve(image, log_path, mountpoint):
    """Serves `disk`, whose writes and flushes are appended to the log, and `mark`, whose text is a mark in the log."""
    fuse = import_fuse()

    class Disk(fuse.Operations):
        use_ns = True

        def __init__(self):
            self.data = bytearray(Path(image).read_bytes())
            self.log = open(log_path, "wb")

        def note(self, kind, offset, data):
            self.log.write(RECORD.pack(kind, offset, len(data)) + data)

        def getattr(self, path, handle=None):
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
            if path not in ("/disk", "/mark"):
                raise fuse.FuseOSError(errno.ENOENT)
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": len(self.data) if path == "/disk" else 0}

        def readdir(self, path, handle):
            return [".", "..", "disk", "mark"]

        def open(self, path, flags):
            return 0

        def truncate(self, path, length, handle=None):
            return 0

        def read(self, path, size, offset, handle):
            return bytes(self.data[offset:offset + size]) if path == "/disk" else b""

        def write(self, path, data, offset, handle):
            if path == "/mark":
                self.note(MARK, 0, data)
            else:
                self.data[offset:offset + len(data)] = data
                self.note(WRITE, offset, data)
            return len(data)

        def fsync(self, path, only_data, handle):
            if path == "/disk":
                self.note(FLUSH, 0, b"")
            self.log.flush()
            return 0

        def destroy(self, path):
            self.log.close()

    fuse.FUSE(Disk(), mountpoint, foreground=True, nothreads=True, direct_io=False)


def read_log(path):
    data, at, records = path.read_bytes(), 0, []
    while at < len(data):
        kind, offset, length = RECORD.unpack_from(data, at)
        at += RECORD.size
        records.append((kind, offset, data[at:at + length]))
        at += length
    return records


def run(*command, **options):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, **options)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {result.stdout}{result.stderr}")
    return result.stdout


# ---- the work --------------------------------------------------------------------------------------------------------

def marks_of_tools(binaries, root, environment, mark):
    """One result after the other; each is marked when its program has returned."""
    golden = Path(__file__).resolve().parent.parent / "golden/v1"
    unishard = binaries / "unishard"
    jobs = [("native", "convert", golden, root / "native", "--to", "native"),
            ("five", "reshard", golden, root / "five", "-w", "5"),
            ("model.safetensors", "zero_to_fp32", golden, root / "model.safetensors"),
            ("dcp", "convert", golden, root / "dcp", "--to", "dcp", "-w", "2"),
            ("deepspeed", "convert", golden, root / "deepspeed", "--to", "deepspeed", "-w", "2"),
            ("packed", "convert", golden, root / "packed", "--to", "native", "--compress", "zstd")]
    for name, *command in jobs:
        run(unishard, *command, "-q", env=environment)
        mark(f"made {name}")


def marks_of_training(binaries, root, environment, mark):
    """Saves at every step, in the foreground and behind; each is marked when the trainer says that it is durable."""
    write_training_inputs(root)
    for mode, steps in (("--no-async-save", 6), ("--async-save", 12)):
        process = subprocess.Popen(
            [str(part) for part in
             (binaries / "unishard", *training_arguments(binaries / "train_gpt", root, steps, "run"), mode)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = []
        for line in process.stdout:
            said.append(line)
            if "saved" in line and "global_step" in line:
                mark("step " + line.split("global_step")[1].split()[0].rstrip(",:;)"))
        if process.wait() != 0:
            raise RuntimeError("".join(said))


def record(work, binaries, scratch, environment):
    """Runs the work on a new ext4; returns the device before it, and the records."""
    image, log, served, mounted = (scratch / name for name in ("image", "log", "served", "mounted"))
    for folder in (served, mounted):
        folder.mkdir(exist_ok=True)
    with open(image, "wb") as file:
        file.truncate(DEVICE_BYTES)
    run("mkfs.ext4", "-q", "-F", "-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
    server = subprocess.Popen([sys.executable, __file__, "--serve", image, log, served])
    try:
        for _ in range(100):
            if os.path.exists(served / "disk"):
                break
            time.sleep(0.05)
        else:
            skip("FUSE does not serve files here")
        mount = subprocess.run(["mount", "-o", "loop,commit=1", served / "disk", mounted], capture_output=True, text=True)
        if mount.returncode != 0:
            skip(f"ext4 cannot be mounted here: {mount.stderr.strip()}")
        try:
            work(binaries, mounted, environment, lambda text: (served / "mark").write_text(text))
        finally:
            run("umount", mounted)
    finally:
        subprocess.run(["umount", served], check=False, capture_output=True)
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            server.kill()
    return image.read_bytes(), read_log(log)


# ---- the crash states ------------------------------------------------------------------------------------------------

def surviving(pending, chance):
    """Which of the writes since the last flush are on the disk."""
    mode = chance.choice(("all", "none", "some", "some", "prefix", "torn"))
    if mode == "all" or not pending:
        return list(pending)
    if mode == "none":
        return []
    if mode == "some":
        return [write for write in pending if chance.random() < 0.5]
    kept = list(pending[:chance.randrange(len(pending) + 1)])
    if mode == "torn" and kept and len(kept[-1][1]) > 512:
        offset, data = kept[-1]
        kept[-1] = (offset, data[:512 * chance.randrange(len(data) // 512)])
    return kept


def crash_states(base, records, count, chance):
    """Yields (image, marks that must hold) for `count` random moments, in their order."""
    moments = sorted(chance.randrange(len(records) + 1) for _ in range(count))
    durable, done, marks, pending_marks, pending = bytearray(base), 0, [], [], []
    for moment in moments:
        for kind, offset, data in records[done:moment]:
            if kind == WRITE:
                pending.append((offset, data))
            elif kind == MARK:
                marks.append(data.decode())  # what the program reported must have been flushed by itself
            else:
                for at, old in pending:
                    durable[at:at + len(old)] = old
                pending = []
        done = moment
        image = bytearray(durable)
        for at, data in surviving(pending, chance):
            image[at:at + len(data)] = data
        yield image, list(marks)


def check_state(binaries, root, marks):
    """The folder as it is after the reboot."""
    for name in [mark.removeprefix("made ") for mark in marks if mark.startswith("made ")]:
        check((root / name).exists(), f"{name} was reported as made and is not there")
    steps = [int(mark.removeprefix("step ")) for mark in marks if mark.startswith("step ")]
    latest = root / "run/latest"
    if steps:
        check(latest.exists(), f"step {steps[-1]} was reported as saved and `latest` is not there")
        found = int(latest.read_text().strip().removeprefix("global_step"))
        check(found >= steps[-1], f"step {steps[-1]} was reported as saved, and `latest` names {found}")
    for name in visible(root):
        path = root / name
        if name in ("lost+found", "config.json", "data.txt"):
            continue
        if path.is_dir() and not visible(path):
            check(f"made {name}" not in marks, f"{name} was reported as made and is empty")
            continue
        Tools(binaries).verify(path)


def try_states(name, recorded, options, binaries, scratch, findings, chance):
    base, records = recorded
    image_path, mounted = scratch / "crashed", scratch / "after"
    mounted.mkdir(exist_ok=True)
    known, unmountable = set(), 0
    for image, marks in crash_states(base, records, options.count, chance):
        digest = hashlib.blake2b(image).digest()
        if digest in known:
            continue
        known.add(digest)
        image_path.write_bytes(image)
        mount = subprocess.run(["mount", "-o", "loop", image_path, mounted], capture_output=True, text=True)
        if mount.returncode != 0:
            unmountable += 1  # the file system itself did not survive: not ours to judge
            continue
        try:
            check_state(binaries, mounted, marks)
        except Finding as finding:
            findings.append(f"{name}, state {len(known)}: {finding}")
            if not options.teeth:
                print("FINDING", findings[-1], flush=True)
        finally:
            run("umount", mounted)
        if len(findings) >= 5:
            break
    writes = sum(kind == WRITE for kind, _, _ in records)
    flushes = sum(kind == FLUSH for kind, _, _ in records)
    print(f"{'ext4: ' + name:<34} | {len(known):>9} {'distinct states':<22} | {len(findings):>3} findings | {writes} writes, "
          f"{flushes} flushes, {unmountable} states that the kernel does not mount | seed {options.seed}", flush=True)
    return len(known)


# ---- all of it -------------------------------------------------------------------------------------------------------

def skip(reason):
    print(f"ext4: skipped: {reason}")
    sys.exit(77)


def require_device():
    if os.geteuid() != 0:
        skip("a loop device needs root")
    for program in ("mkfs.ext4", "mount", "losetup", "unshare"):
        if not shutil.which(program):
            skip(f"{program} is not installed")
    try:
        import_fuse()
    except (ImportError, OSError) as error:
        skip(f"fusepy: {error}")
    if not os.path.exists("/dev/fuse") or not os.path.exists("/dev/loop-control"):
        skip("no /dev/fuse or no loop devices")
    if "UNISHARD_OWN_MOUNTS" not in os.environ:  # what is mounted here ends with this process
        probe = subprocess.run(["unshare", "--mount", "--propagation", "private", "true"], capture_output=True)
        if probe.returncode != 0:
            skip("mount namespaces are not allowed here")
        os.environ["UNISHARD_OWN_MOUNTS"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--count", type=int, help="moments of each workload")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--teeth", action="store_true")
    options = parser.parse_args()
    require_device()
    options.count = options.count or (2000 if options.long else 40)
    chance = random.Random(options.seed)
    environment = dict(os.environ)
    if options.teeth:
        if not shutil.which("eatmydata"):
            skip("eatmydata is not installed")
        environment["LD_PRELOAD"] = "libeatmydata.so"
    works = [("tools", marks_of_tools)]
    if (options.bin / "train_gpt").exists():
        works.append(("training", marks_of_training))
    findings = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, work in works:
            found = []
            recorded = record(work, options.bin.resolve(), Path(scratch), environment)
            try_states(name, recorded, options, options.bin.resolve(), Path(scratch), found, chance)
            findings += found
            if options.teeth and not found:
                print(f"FINDING {name}: without fsync() no state fails")
                sys.exit(1)
    sys.exit(1 if findings and not options.teeth else 0)


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] == "--serve":
        serve(*sys.argv[2:])
    else:
        main()
