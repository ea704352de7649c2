#!/usr/bin/env python3
"""Kills: SIGKILL at random moments over the tools, the launcher and the trainer.

    kills.py --bin BUILD/bin [--count N] [--pairs N] [--teams N] [--train N] [--torchrun PROGRAM] [--seed N] [--long]

After each kill every checkpoint that is published must pass `unishard verify --deep --all`, the
input must be as it was, and a result is absent or whole. With two writers of one output, whoever
was not killed has either written it or was refused because it was being written (status 3). Of two
processes that share one job, both are killed, or one: the other then ends by itself. After
the trainer is killed, no committed checkpoint is lost, and the losses of the resumed run are those
of a run that was never killed. Status 1: a finding.
"""
import argparse
import filecmp
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MARKS = (".partial-", ".removed-")


class Finding(Exception):
    pass


def check(condition, text):
    if not condition:
        raise Finding(text)


class Tools:
    def __init__(self, binaries):
        self.unishard = str(Path(binaries) / "unishard")
        self.train_gpt = str(Path(binaries) / "train_gpt")

    def run(self, *arguments):
        return subprocess.run([self.unishard, *map(str, arguments)], capture_output=True, text=True)

    def start(self, *arguments, launcher=()):
        # A session of its own, so that a launcher dies together with its ranks.
        return subprocess.Popen([*launcher, self.unishard, *map(str, arguments)], start_new_session=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def verify(self, path):
        result = self.run("verify", "--deep", "--all", path)
        check(result.returncode == 0, f"verify {path}: {result.returncode}: {result.stdout}{result.stderr}")


def kill(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.communicate()


def processes_of(session):
    """The processes of a session, launchers and shells included."""
    found = subprocess.run(["ps", "-o", "pid=", "--sid", str(session)], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def kill_one_process(process, chance):
    """Kills a random process of the session; the others must end by themselves."""
    pids = processes_of(process.pid)
    if pids:
        try:
            os.kill(chance.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            pass
    until = time.monotonic() + 60
    while [pid for pid in processes_of(process.pid) if pid != process.pid] or process.poll() is None:
        if time.monotonic() > until:
            kill(process)
            raise Finding("the other processes go on after one was killed")
        time.sleep(0.02)


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def visible(folder):
    """Published results: names that nobody is writing or deleting."""
    if not folder.is_dir():
        return []
    return [name for name in sorted(os.listdir(folder))
            if not name.startswith(".") and not any(mark in name for mark in MARKS)]


def same_files(a, b):
    if a.is_file():
        return b.is_file() and filecmp.cmp(a, b, shallow=False)
    names = sorted(str(path.relative_to(a)) for path in a.rglob("*"))
    return names == sorted(str(path.relative_to(b)) for path in b.rglob("*")) and all(
        (a / name).is_dir() or filecmp.cmp(a / name, b / name, shallow=False) for name in names)


class Job:
    """One tool with one output, in a folder of its own."""

    def __init__(self, tools, root, source, name, arguments, output, native, inside="", launcher=()):
        self.tools, self.source, self.name, self.arguments = tools, source, name, arguments
        self.launcher = launcher
        self.folder = root / name.replace(" ", "-")
        self.folder.mkdir()
        self.output, self.native, self.inside = self.folder / output, native, inside
        self.result = self.output / inside  # appears at once
        whole = self.folder / "whole" / output
        self.whole = whole / inside
        whole.parent.mkdir()
        started = time.monotonic()
        process = self.start(whole)
        _, err = process.communicate()
        check(process.returncode == 0, f"{name}: {err}")
        self.seconds = time.monotonic() - started

    def command(self, output):
        return [self.source if word == "IN" else output if word == "OUT" else word for word in self.arguments]

    def start(self, output):
        return self.tools.start(*self.command(output), launcher=self.launcher)

    def check(self):
        if not self.published():
            return
        if self.native:
            self.tools.verify(self.output)
        else:
            check(same_files(self.whole, self.result), f"{self.result} is not whole")

    def published(self):
        return bool(visible(self.output)) if self.native else self.result.exists()


def kill_one(job, chance, is_team=False):
    """Kills the job. Of a team of two processes both are killed, or one of them, or their launcher."""
    process = job.start(job.output)
    time.sleep(chance.uniform(0, 1.1 * job.seconds))
    if is_team and chance.random() >= 0.5:
        kill_one_process(process, chance)
        process.communicate()
    else:
        kill(process)
    job.check()
    if job.published() and chance.random() < 0.5:
        remove(job.output)


def kill_pair(job, chance):
    """Two writers of one output; one is killed, sometimes both."""
    if job.output.exists():
        remove(job.output)
    writers = [job.start(job.output) for _ in range(2)]
    time.sleep(chance.uniform(0, 1.5 * job.seconds))
    kill(writers[0])
    if chance.random() < 0.3:
        kill(writers[1])
    else:
        out, err = writers[1].communicate()
        status = writers[1].returncode
        # 2: what the other one had published by then is not overwritten
        check(status in (0, 2, 3), f"{job.name}: the second writer ended with {status}: {out}{err}")
        if status == 0:
            check(job.published(), f"{job.name}: the second writer says it is done, and nothing is there")
        else:
            reasons = ("being written", "is there already", "was created", "is not empty", "lies inside the checkpoint")
            check(any(reason in err for reason in reasons), f"{job.name}: the second writer says {err}")
    job.check()


def kill_prune(tools, root, many, chance):
    folder = root / "pruned"
    if not folder.exists():
        shutil.copytree(many, folder)
    process = tools.start("prune", folder, "--keep-last", "1")
    time.sleep(chance.uniform(0, 0.05))
    kill(process)
    tools.verify(folder)
    newest = (many / "latest").read_text()
    check((folder / "latest").read_text() == newest, "prune: latest has changed")
    check((folder / newest.strip() / "manifest.json").exists(), "prune: the newest checkpoint is gone")
    if len(visible(folder)) == 2:  # the newest and `latest`
        remove(folder)


def kill_verify(tools, source, chance):
    before = {path: path.stat().st_mtime_ns for path in source.rglob("*")}
    process = tools.start("verify", "--deep", "--all", source)
    time.sleep(chance.uniform(0, 0.05))
    kill(process)
    check(before == {path: path.stat().st_mtime_ns for path in source.rglob("*")}, "verify changed its input")


CONFIG = {"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
          "zero_optimization": {"stage": 2}, "canonical_order": True}


def offloading(folder):
    """A configuration that keeps all training state in files in `folder`, and updates it during the backward pass."""
    nvme = {"device": "nvme", "nvme_path": str(folder)}
    return {**CONFIG, "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3, "offload_optimizer": {**nvme, "super_offload": True}, "offload_param": {**nvme, "max_in_cpu": 0}}}


def write_training_inputs(root, config=None):
    (root / "config.json").write_text(json.dumps(config or CONFIG))
    (root / "data.txt").write_text("".join(chr(32 + (i * i * 7 + i) % 90) for i in range(20000)))


def training_arguments(train_gpt, root, steps, save):
    """Arguments of unishard: two ranks that save at every step into root / save."""
    return ["launch", "-n", "2", "--", train_gpt, "--config", root / "config.json", "--data", root / "data.txt",
            "--model", "nano", "--layers", "1", "--width", "16", "--heads", "1", "--context", "8", "--steps", steps,
            "--save", root / save, "--save-interval", "1", "--keep-last", "2", "--resume"]


class Training:
    STEPS = 40

    def __init__(self, tools, root, offload=None):
        self.tools, self.root, self.offload = tools, root, offload
        root.mkdir(exist_ok=True)
        write_training_inputs(root, offload and offloading(offload))
        self.reference = self.losses_of(self.run_to_end("reference", "reference.jsonl"))
        check(len(self.reference) == self.STEPS, "the undisturbed run has other steps")
        self.reset()

    def arguments(self, save, losses):
        return [*training_arguments(self.tools.train_gpt, self.root, self.STEPS, save), "--losses", self.root / losses]

    def run_to_end(self, save, losses):
        result = self.tools.run(*self.arguments(save, losses))
        check(result.returncode == 0, f"training: {result.returncode}: {result.stderr}")
        return self.root / losses

    @staticmethod
    def losses_of(path):
        found = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                row = json.loads(line)
            except ValueError:
                continue  # the line that was being written when the process died
            found.setdefault(row["step"], set()).add(row["loss"])
        return found

    def reset(self):
        self.save, self.newest = self.root / "run", 0
        remove(self.save)
        (self.root / "losses.jsonl").unlink(missing_ok=True)

    def check_losses(self):
        for step, losses in self.losses_of(self.root / "losses.jsonl").items():
            check(losses == self.reference[step], f"step {step} has losses {losses}, not {self.reference[step]}")

    def kill_pair(self, chance):
        """Two jobs that save into one folder, at different steps. Either may be refused."""
        jobs = []
        for _ in range(2):
            jobs.append(self.tools.start(*self.arguments("run", "losses.jsonl")))
            time.sleep(chance.uniform(0, 1))
        time.sleep(chance.uniform(0.3, 2))
        for job in jobs:
            kill(job)
            if visible(self.save):
                self.tools.verify(self.save)
        self.check_losses()
        if visible(self.save):
            check(self.last_saved() > 0 or self.newest == 0, "latest is gone")
            self.newest = self.last_saved()  # the slower one may have moved it back
        if self.newest == self.STEPS:
            self.reset()

    def last_saved(self):
        latest = self.save / "latest"
        return int(latest.read_text().strip().removeprefix("global_step")) if latest.exists() else 0

    def kill_once(self, chance):
        process = self.tools.start(*self.arguments("run", "losses.jsonl"))
        time.sleep(chance.uniform(0.3, 2.5))
        if chance.random() < 0.3:  # one rank alone; the launcher ends the others
            ranks = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
            for pid in ranks.stdout.split()[:1]:
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            try:
                process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                raise Finding("the launcher goes on after a rank was killed")
        kill(process)
        self.check_losses()
        if self.offload:
            check(not any(path.stat().st_size for path in self.offload.iterdir()), f"{self.offload} holds files of a dead run")
        if not visible(self.save):
            check(self.newest == 0, "the committed checkpoints are gone")
            return
        self.tools.verify(self.save)
        newest = self.last_saved()
        check(newest >= self.newest, f"latest went from step {self.newest} back to {newest}")
        self.newest = newest
        if newest == self.STEPS:
            self.reset()


def campaign(name, count, action, seed, findings, log):
    if count == 0:
        return 0
    started = time.monotonic()
    before = len(findings)
    for i in range(count):
        try:
            action()
        except Finding as finding:
            findings.append(f"{name}, kill {i}: {finding}")
            print("FINDING", findings[-1], file=log, flush=True)
            if len(findings) - before >= 5:
                count = i + 1
                break
    print(f"{'kills: ' + name:<34} | {count:>9} {'kills':<22} | {len(findings) - before:>3} findings | "
          f"{time.monotonic() - started:>7.1f} s | seed {seed}", file=log, flush=True)
    return count


def make_inputs(tools, root, golden):
    """A folder with one checkpoint, and one with four."""
    source, many = root / "in", root / "many"
    shutil.copytree(golden, source)
    for step, stage in ((1, 0), (2, 1), (3, 2), (4, 3)):
        result = tools.run("convert", source, many, "--to", "native", "-w", step, "--stage", stage, "--out-tag", f"global_step{step}")
        check(result.returncode == 0, f"reshard: {result.stderr}")
        # `latest` is the newest by step; all are of one step, so by time
    return source, many


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--count", type=int, help="kills of each tool")
    parser.add_argument("--pairs", type=int, help="kills of each tool with two writers")
    parser.add_argument("--teams", type=int, help="kills of each tool that runs as two processes")
    parser.add_argument("--train", type=int, help="kills of the trainer")
    parser.add_argument("--torchrun", help="the program torchrun: it starts some of the two processes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--long", action="store_true")
    options = parser.parse_args()
    each = options.count if options.count is not None else 1100 if options.long else 6
    pairs = options.pairs if options.pairs is not None else 250 if options.long else 3
    teams = options.teams if options.teams is not None else 250 if options.long else 3
    trained = options.train if options.train is not None else 300 if options.long else 3
    chance = random.Random(options.seed)
    tools = Tools(options.bin)
    golden = Path(__file__).resolve().parent.parent / "golden/v1"
    findings, total, log = [], 0, sys.stdout
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        root = Path(folder)
        source, many = make_inputs(tools, root, golden)
        jobs = [Job(tools, root, source, *row) for row in (
            ("reshard", ["reshard", "IN", "OUT", "-w", "3"], "out", True),
            ("convert to safetensors", ["convert", "IN", "OUT", "--to", "safetensors", "--weights-only"], "m.safetensors", False),
            ("convert to dcp", ["convert", "IN", "OUT", "--to", "dcp"], "dcp", False),
            ("convert to deepspeed", ["convert", "IN", "OUT", "--to", "deepspeed"], "ds", False,
             "global_step7"),
            ("convert to torch", ["convert", "IN", "OUT", "--to", "torch"], "m.pt", False),
            ("zero_to_fp32", ["zero_to_fp32", "IN", "OUT"], "model.safetensors", False))]
        for job in jobs:
            total += campaign(job.name, each, lambda job=job: kill_one(job, chance), options.seed, findings, log)
            total += campaign(f"{job.name}, two writers", pairs, lambda job=job: kill_pair(job, chance),
                              options.seed, findings, log)
        launchers = {"--procs 2": ([], ["--procs", "2"])}
        if options.torchrun:
            launchers["torchrun"] = ([options.torchrun, "--no-python", "--standalone", "--nproc-per-node", "2"], [])
        for launcher, (prefix, suffix) in launchers.items():
            for job in jobs:
                team = Job(tools, root, source, f"{job.name}, {launcher}", job.arguments + suffix, job.output.name,
                           job.native, job.inside, prefix)
                total += campaign(team.name, teams if not prefix else teams // 5, lambda team=team: kill_one(team, chance, is_team=True),
                                  options.seed, findings, log)
        total += campaign("prune", each, lambda: kill_prune(tools, root, many, chance), options.seed, findings, log)
        total += campaign("verify", each, lambda: kill_verify(tools, source, chance), options.seed, findings, log)
        tools.verify(source)
        if os.path.exists(tools.train_gpt) and trained:
            training = Training(tools, root)
            total += campaign("train_gpt", trained, lambda: training.kill_once(chance), options.seed, findings, log)
            offloaded = Training(tools, root / "offloaded", root / "nvme")
            total += campaign("train_gpt, state on NVMe", trained, lambda: offloaded.kill_once(chance), options.seed, findings, log)
            total += campaign("train_gpt, two writers", trained // 3, lambda: training.kill_pair(chance),
                              options.seed, findings, log)
    print(f"{'kills: all':<34} | {total:>9} {'kills':<22} | {len(findings):>3} findings | seed {options.seed}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
