#!/usr/bin/env python3
"""Runs the parts that need a GPU, each with a limit of its own, eight minutes together, and prints a table at the end: run.sh calls it.

  kernels    kernels of the optimizers and copies of saves, compared with the host bit by bit
  matrix     the resume matrix over NCCL with one rank, and over Gloo with ranks that share the device
  repeat     20 steps of a 355 M GPT twice, and resumed at another ZeRO stage from step 10: the losses must be equal bit by bit
  saves      how long asynchronous saves of that model stall training, and the rates of saves and loads beside those of dd and of a copy
             to pinned memory
  steps      seconds of a step at 136 M and 1.3 B, and of the latter with micro-batch 1, beside eager PyTorch, FSDP2 and DeepSpeed where it
             is installed, and the peak of the device's memory
  sanitizer  compute-sanitizer over two steps of train_gpt

A part that fails, or that takes longer than its limit, keeps the figures that it has. With --device cpu the same parts run on the CPU with
small models, which shows that this script works; a part that needs a GPU is skipped.
"""
import argparse
import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# layers, width, heads, context, vocabulary, samples in a micro-batch
SIZES = {"cuda": {"355M": (24, 1024, 16, 1024, 50304, 8), "136M": (12, 768, 12, 1024, 50304, 8), "1.3B": (24, 2048, 16, 1024, 50304, 8)},
         "cpu": {"355M": (2, 64, 2, 64, 256, 2), "136M": (2, 32, 2, 32, 256, 2), "1.3B": (3, 64, 2, 64, 256, 2)}}
LIMITS = {"kernels": 40, "matrix": 75, "repeat": 80, "saves": 75, "steps": 165, "sanitizer": 45}  # seconds on a GPU
CPU_FACTOR = 5  # of the limits: a CPU is shared with other work


class Failed(Exception):
    """A part did not show what it should."""


class Skipped(Exception):
    """A part cannot run here."""


class Run:
    """What the parts share: programs, their environment, and the time that is left of a part."""

    def __init__(self, options, work):
        self.device, self.bins, self.work = options.device, [Path(folder).resolve() for folder in options.bin], work
        self.environment = dict(os.environ)
        if options.libraries:
            self.environment["LD_LIBRARY_PATH"] = ":".join(libraries(options.libraries))
        self.end = 0.0

    def program(self, name):
        found = [folder / name for folder in self.bins if (folder / name).exists()]
        if not found:
            raise Skipped(f"no {name} in {', '.join(map(str, self.bins))}")
        return str(found[0])

    def call(self, command):
        """Returns what the command prints. Raises Failed where it fails or its part's time is over."""
        left = self.end - time.monotonic()
        environment = os.environ if command[0] == sys.executable else self.environment  # Python has libraries of its own
        try:
            done = subprocess.run(command, env=environment, cwd=self.work, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=max(left, 0.1))
        except subprocess.TimeoutExpired:
            raise Failed(f"{Path(command[0]).name} took longer than the part's limit") from None
        if done.returncode:
            raise Failed(f"{Path(command[0]).name}: status {done.returncode}: {' / '.join(done.stdout.strip().splitlines()[-4:])}")
        return done.stdout

    def train(self, size, stage, steps, *options, micro=None):
        """Trains with train_gpt; returns the lines that it prints and the lines of its losses."""
        layers, width, heads, context, vocabulary, usual = SIZES[self.device][size]
        config, tokens, losses = self.work / "config.json", self.work / f"tokens-{vocabulary}.bin", self.work / "losses.jsonl"
        config.write_text(json.dumps({"train_micro_batch_size_per_gpu": micro or usual, "gradient_clipping": 1.0, "bf16": {"enabled": True},
                                      "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
                                      "zero_optimization": {"stage": stage}, "canonical_order": True}))
        if not tokens.exists():
            state, numbers = 1, bytearray()
            for _ in range(400000):
                state = (state * 1103515245 + 12345) % 2**31
                numbers += ((state >> 8) % vocabulary).to_bytes(2, "little")
            tokens.write_bytes(numbers)
        losses.unlink(missing_ok=True)
        printed = self.call([self.program("train_gpt"), "--config", str(config), "--data", str(tokens), "--tokens", "uint16", "--model", "gpt2",
                             "--layers", str(layers), "--width", str(width), "--heads", str(heads), "--context", str(context),
                             "--vocab-size", str(vocabulary), "--device", self.device, "--steps", str(steps), "--losses", str(losses),
                             *map(str, options)])
        return printed.splitlines(), [json.loads(line) for line in losses.read_text().splitlines()]


def libraries(own):
    """Returns the folders of our libraries, of this Python's LibTorch, and of NVIDIA's packages beside it."""
    import torch
    site = Path(torch.__file__).parents[1]
    return [str(Path(own).resolve()), str(site / "torch" / "lib")] + sorted(str(path) for path in site.glob("nvidia/*/lib"))


def kernels(run, figures):
    need_cuda(run)
    printed = run.call([run.program("trainer_engine_test"), "--gtest_brief=1", "--gtest_filter=CudaUpdate.*:CudaSquareSums.*:CudaGradients.*:CudaLanguageModel.*:AsyncSave.*"])
    figures["result"] = last(printed)


def matrix(run, figures):
    jobs = ([(1, "gpt", "float32", "0123", "1", "nccl"), (1, "llama", "bfloat16", "0123", "1", "nccl"), (4, "gpt", "float32", "03", "124", "cuda"),
             (2, "llama", "bfloat16", "0123", "12", "cuda"), (2, "gpt", "float16", "03", "12", "cuda")]
            if run.device == "cuda" else [(2, "gpt", "bfloat16", "03", "12", "cpu")])
    for ranks, *arguments in jobs:
        folder = run.work / "matrix"
        folder.mkdir()
        printed = run.call([run.program("unishard"), "launch", "--nproc-per-node", str(ranks), "--", run.program("matrix_driver"), str(folder), *arguments])
        figures[f"{' '.join(arguments)}, {ranks} ranks"] = last(printed)
        shutil.rmtree(folder)


def repeat(run, figures):
    folder, numbers = run.work / "repeat", [line["loss"] for line in run.train("355M", 3, 20)[1]]
    again = [line["loss"] for line in run.train("355M", 3, 20)[1]]
    run.train("355M", 3, 10, "--save", folder)
    resumed = [line["loss"] for line in run.train("355M", 0, 20, "--save", folder, "--save-interval", 0, "--resume")[1]]
    shutil.rmtree(folder)
    figures.update({"repeated": same(numbers, again), "resumed at stage 0 from step 10": same(numbers[10:], resumed)})
    if not all(value.startswith("all") for value in figures.values()):
        raise Failed("losses differ")


def same(expected, found):
    count = sum(one == other for one, other in zip(expected, found))
    return f"all {count} losses equal" if count == len(expected) == len(found) else f"{count} of {len(expected)} losses equal"


SAVED = re.compile(r"saved (\S+): ([\d.]+) (\wB) in ([\d.]+) s .*training waited ([\d.]+) s")
UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


def saves(run, figures):
    folder = run.work / "saves"
    printed = run.train("355M", 3, 12, "--save", folder, "--save-interval", 6, "--async-save")[0]
    found = [match for line in printed if (match := SAVED.search(line))]
    if not found:
        raise Failed("train_gpt says of no save how long training waited")
    size = float(found[0][2]) * UNITS[found[0][3]]
    figures["bytes of a save"] = int(size)
    figures["seconds that saves stall training"] = [float(match[5]) for match in found]
    figures["saves, GB/s"] = [round(size / float(match[4]) / 1e9, 2) for match in found]
    resumed = seconds_of(lambda: run.train("355M", 3, 13, "--save", folder, "--save-interval", 0, "--resume"))
    shutil.rmtree(folder)
    load = resumed - seconds_of(lambda: run.train("355M", 3, 1))
    figures["load, GB/s: a start that resumes less one that does not, a step each"] = rate(size, load) if load > 0.2 else "too short to tell"
    file, blocks = run.work / "raw", max(1, int(size) >> 24)
    for name, arguments in (("writes", ["if=/dev/zero", f"of={file}", "oflag=direct", "conv=fsync"]), ("reads", [f"if={file}", "of=/dev/null", "iflag=direct"])):
        seconds = seconds_of(lambda: run.call(["dd", *arguments, "bs=16M", f"count={blocks}"]))
        figures[f"dd {name} with direct I/O, GB/s"] = rate(blocks << 24, seconds)
    file.unlink()
    if run.device == "cuda":
        figures["copy to pinned memory, GB/s"] = json.loads(run.call([sys.executable, str(HERE / "torch_step.py"), "pinned"]))["rate"]


def seconds_of(work):
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


def rate(size, seconds):
    return round(size / seconds / 1e9, 2)


def steps(run, figures):
    modes = ("eager", "fsdp2", "deepspeed3") if run.device == "cuda" else ("eager", "deepspeed3")
    for size, stage, micro in (("136M", 0, None), ("136M", 3, None), ("1.3B", 0, None), ("1.3B", 3, None), ("1.3B", 3, 1)):
        own_step(run, figures, size, stage, micro)
    for size, mode, micro in ((size, mode, micro) for size, micro in (("136M", None), ("1.3B", None), ("1.3B", 1)) for mode in modes):
        if micro is None or mode == "eager":
            peer_step(run, figures, size, mode, micro)


STEPS = 12
PEERS = {"eager": "PyTorch, eager", "fsdp2": "FSDP2", "deepspeed3": "DeepSpeed, stage 3"}


def own_step(run, figures, size, stage, micro):
    with Peak(run) as peak:
        lines = run.train(size, stage, STEPS, micro=micro)[1]
    tokens = (micro or SIZES[run.device][size][5]) * SIZES[run.device][size][3]
    figures[f"{named(size, micro)}, train_gpt, stage {stage}"] = row(statistics.median(tokens / line["tokens_per_s"] for line in lines[3:]), peak.mib)


def peer_step(run, figures, size, mode, micro):
    """A peer that is missing or fails is no failure of ours."""
    *shape, usual = SIZES[run.device][size]
    name = f"{named(size, micro)}, {PEERS[mode]}"
    if mode.startswith("deepspeed") and importlib.util.find_spec("deepspeed") is None:
        figures[name] = "not installed"
        return
    try:
        with Peak(run) as peak:
            printed = run.call([sys.executable, str(HERE / "torch_step.py"), mode, run.device, *map(str, (*shape, micro or usual, STEPS))])
        figures[name] = row(json.loads(last(printed))["seconds"], peak.mib)
    except Failed as reason:
        figures[name] = str(reason)


def named(size, micro):
    return size if micro is None else f"{size}, micro-batch {micro}"


def row(seconds, mib):
    return f"{1000 * seconds:.1f} ms" + (f", peak {mib} MiB" if mib else "")


class Peak:
    """Asks nvidia-smi for the memory in use until the block ends."""

    def __init__(self, run):
        self.mib, self._on, self._done = 0, run.device == "cuda", threading.Event()

    def __enter__(self):
        self._thread = threading.Thread(target=self._ask, daemon=True)
        if self._on:
            self._thread.start()
        return self

    def __exit__(self, *exception):
        self._done.set()
        if self._on:
            self._thread.join()

    def _ask(self):
        while not self._done.wait(0.3):
            answer = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True)
            if answer.returncode == 0:
                self.mib = max([self.mib, *map(int, answer.stdout.split())])


def sanitizer(run, figures):
    need_cuda(run)
    if shutil.which("compute-sanitizer") is None:
        raise Skipped("no compute-sanitizer")
    config, text = run.work / "sanitizer.json", run.work / "text"
    config.write_text(json.dumps({"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3},
                                  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}))
    text.write_bytes(Path(__file__).read_bytes())
    # NCCL asks for what a device does not have, which is reported as an error of the interface.
    printed = run.call(["compute-sanitizer", "--report-api-errors", "no", "--error-exitcode", "9", run.program("train_gpt"), "--config", str(config),
                        "--data", str(text), "--model", "nano", "--steps", "2", "--device", "cuda", "--save", str(run.work / "sanitized")])
    figures["result"] = next(line for line in printed.splitlines() if "ERROR SUMMARY" in line)


def need_cuda(run):
    if run.device != "cuda":
        raise Skipped("needs a GPU")


def last(printed):
    return printed.strip().splitlines()[-1]


PARTS = {"kernels": kernels, "matrix": matrix, "repeat": repeat, "saves": saves, "steps": steps, "sanitizer": sanitizer}


def measure(name, run):
    """Returns a part's state, seconds and figures."""
    begin, figures, state = time.monotonic(), {}, "passed"
    run.end = begin + LIMITS[name] * (1 if run.device == "cuda" else CPU_FACTOR)
    try:
        PARTS[name](run, figures)
    except Skipped as reason:
        state, figures["because"] = "skipped", str(reason)
    except Failed as reason:
        state, figures["because"] = "FAILED", str(reason)
    return {"part": name, "state": state, "seconds": round(time.monotonic() - begin, 1), "figures": figures}


def table_text(table):
    """Returns the parts with their figures, one figure a line."""
    width = max(len(key) for part in table for key in part["figures"])
    lines = []
    for part in table:
        lines.append(f"{part['part']:10} {part['state']:8} {part['seconds']:6.1f} s")
        lines += [f"  {key:{width}}  {value}" for key, value in part["figures"].items()]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", action="append", required=True, help="a folder of programs; may be given several times")
    parser.add_argument("--libraries", help="a folder of libraries that the programs need, beside those of this Python's PyTorch")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--parts", default=",".join(PARTS), help="names, separated by commas (default: all)")
    parser.add_argument("--json", help="file for the table")
    options = parser.parse_args()
    names = options.parts.split(",")
    for name in names:
        if name not in PARTS:
            parser.error(f"there is no part {name}: {', '.join(PARTS)}")
    table = []
    with tempfile.TemporaryDirectory(prefix="unishard-gpu-") as work:
        run = Run(options, Path(work))
        for name in names:
            table.append(measure(name, run))
            print(f"{name}: {table[-1]['state']}", flush=True)
            if options.json:  # also of a run that is ended from outside
                Path(options.json).write_text(json.dumps(table, indent=1) + "\n")
    print("\n" + table_text(table))
    return 1 if any(part["state"] == "FAILED" for part in table) else 0


if __name__ == "__main__":
    sys.exit(main())
