#!/usr/bin/env python3
"""Kills ranks, agents and connections of jobs that `unishard launch --max-restarts` starts again.

    restarts.py --bin BUILD/bin [--seconds N | --long] [--seed N]

First on this machine, then on two hosts (hosts.py), where lost hosts make the job go on with fewer
ranks. The losses of every step must be, bit by bit, those of a run that was never disturbed.
`--long`, or UNISHARD_RESTART_SECONDS=600, kills for ten minutes. Status 1: a check failed; 77: train_gpt is missing.
"""
import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import hosts
from hosts import Failed, check

STEPS = 100
STANDSTILL = 120  # seconds without a kill and without a new step
CONFIG = {**hosts.CONFIG, "zero_optimization": {"stage": 3}}


class Training:
    """A run in a folder of its own, as arguments and as losses by step."""

    def __init__(self, root, train_gpt, name):
        self.root, self.train_gpt, self.name = root, train_gpt, name

    @property
    def save(self):
        return self.root / self.name

    def program(self):
        return [str(word) for word in
                [self.train_gpt, "--config", self.root / "config.json", "--data", self.root / "data.txt", "--model", "nano",
                 "--layers", 1, "--width", 16, "--heads", 1, "--context", 8, "--steps", STEPS, "--save", self.save,
                 "--save-interval", 1, "--keep-last", 2, "--resume", "--losses", f"{self.save}.jsonl"]]

    def losses(self):
        found = {}
        path = Path(f"{self.save}.jsonl")
        for line in path.read_text().splitlines() if path.exists() else []:
            with contextlib.suppress(ValueError):  # a line that was being written
                row = json.loads(line)
                found.setdefault(row["step"], set()).add(row["loss"])
        return found

    def ranks(self):
        """Processes of the run: pid and parent."""
        found = {}
        wanted = str(self.save).encode()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (path / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"train_gpt") and wanted in words:
                    found[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        return found


def strike(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def children(pid):
    found = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(pid)], capture_output=True, text=True)
    return {int(line.split()[0]): line.split()[1] for line in found.stdout.splitlines()}


class Campaign:
    def __init__(self, unishard, train_gpt, root, seed):
        self.unishard, self.root = unishard, root
        self.chance = random.Random(seed)
        self.train_gpt = train_gpt
        self.kills = {"rank": 0, "agent": 0, "connection": 0}
        self.restarts = self.jobs = 0
        (root / "config.json").write_text(json.dumps(CONFIG))
        (root / "data.txt").write_text("".join(chr(32 + (i * i * 7 + i) % 90) for i in range(20000)))
        undisturbed = Training(root, train_gpt, "undisturbed")
        result = subprocess.run([unishard, "launch", "-n", "3", "--", *undisturbed.program()], capture_output=True, text=True)
        check(result.returncode == 0, f"the undisturbed run: {result.stderr}")
        self.reference = undisturbed.losses()
        check(len(self.reference) == STEPS and all(len(each) == 1 for each in self.reference.values()), "the undisturbed run has other steps")

    def kill(self, launcher, training, has_hosts):
        """Kills one process of the job; most are ranks."""
        ranks = training.ranks()
        if not ranks:
            return
        kind = self.chance.choice(["rank"] * 8 + ["agent", "connection"]) if has_hosts else "rank"
        victims = {"rank": list(ranks), "agent": sorted(set(ranks.values()) - {launcher.pid}),
                   "connection": [pid for pid, name in children(launcher.pid).items() if name == "ssh"]}[kind]
        if victims:
            strike(self.chance.choice(victims))
            self.kills[kind] += 1

    def run_jobs(self, start, seconds, has_hosts):
        """Starts jobs one after the other; a job that ran out of hosts is started again by hand."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.jobs += 1
            training = Training(self.root, self.train_gpt, f"job-{self.jobs}")
            errors = ""
            progress = 0, time.monotonic()  # steps done, and since when
            while True:
                launcher = start(training)
                while launcher.poll() is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        launcher.wait(self.chance.uniform(0.2, 4))
                    if time.monotonic() < until and launcher.poll() is None:
                        self.kill(launcher, training, has_hosts)
                    done, now = len(training.losses()), time.monotonic()
                    if done > progress[0] or now < until:
                        progress = done, now
                    if now > progress[1] + STANDSTILL:
                        raise Failed(f"{training.name} stands still at step {done}; {hosts.standing(launcher, training.ranks())}")
                _, err = launcher.communicate()
                errors += err
                self.restarts += err.count("; starting again with ")
                check(hosts.eventually(lambda: not training.ranks(), 15), f"ranks are left behind: {training.ranks()}")
                if launcher.returncode == 0:
                    break
                check(has_hosts and "no host is left" in err, f"status {launcher.returncode}: {err[-2000:]}")
            check(training.losses() == self.reference, f"the losses of {training.name} differ: {errors[-2000:]}")
            result = subprocess.run([self.unishard, "verify", "--deep", "--all", training.save], capture_output=True, text=True)
            check(result.returncode == 0, f"verify: {result.stdout}{result.stderr}")


def on_this_machine(campaign, seconds):
    def start(training):
        command = [campaign.unishard, "launch", "-n", "3", "--max-restarts", "1000", "--timeout", "20", "--", *training.program()]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    campaign.run_jobs(start, seconds, has_hosts=False)


def on_hosts(campaign, binaries, seconds):
    with hosts.server_folder(), hosts.Network(3) as network, tempfile.TemporaryDirectory(prefix="unishard-hosts-") as root:
        cluster = hosts.Cluster(Path(root), network, binaries)
        try:
            if not cluster.start_servers():
                return False

            def start(training):
                options = ["--hostfile", cluster.hostfile(2, 1), "--max-restarts", 1000, "--interface", "eth0", "--timeout", 20, "--host-timeout", 6]
                return cluster.start(options, training.program(), stdout=subprocess.DEVNULL)

            campaign.run_jobs(start, seconds, has_hosts=True)
        finally:
            cluster.stop()
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("UNISHARD_RESTART_SECONDS", 36)))
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.long:
        options.seconds = 600
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    signal.signal(signal.SIGTERM, lambda *ignored: sys.exit(1))  # cleans up
    binaries = Path(options.bin).resolve()
    if not (binaries / "train_gpt").exists():
        print("SKIP: there is no train_gpt")
        return 77
    with tempfile.TemporaryDirectory(prefix="unishard-restarts-") as root:
        try:
            campaign = Campaign(str(binaries / "unishard"), str(binaries / "train_gpt"), Path(root), options.seed)
            started = time.monotonic()
            on_this_machine(campaign, options.seconds / 2)
            why = hosts.missing()
            if why or not on_hosts(campaign, binaries, options.seconds / 2):
                print("without hosts:", why)
            check(campaign.kills["rank"] >= 5 and campaign.restarts >= 5, f"too little happened: {campaign.kills}")
        except Failed as failure:
            print(f"FINDING restarts, seed {options.seed}: {failure}")
            return 1
    print(f"restarts: train_gpt | {sum(campaign.kills.values()):>9} kills | 0 findings | {time.monotonic() - started:>7.1f} s | seed {options.seed}: "
          f"{campaign.jobs} jobs of {STEPS} steps, {campaign.kills}, {campaign.restarts} restarts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
