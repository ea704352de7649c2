#!/usr/bin/env python3
"""The trainer's loss scaler beside DeepSpeed's LossScaler and DynamicLossScaler, step by step, with injected overflows.

    loss_scaling.py BUILD [--settings N] [--steps N]

For each of N random settings both get the same overflows; after each step every field must be equal, also where ours is saved and restored now and
then. Half way each continues from the other's state: theirs from a DeepSpeed folder that UniShard wrote, ours from the fields of their object.
"""
import argparse
import glob
import json
import logging
import os
import random
import subprocess
import sys
import tempfile

import torch
import deepspeed
from deepspeed import comm
from deepspeed.runtime.fp16.loss_scaler import CreateLossScaler
from deepspeed.runtime.precision_config import get_float16_config
from deepspeed.utils import logger


def deepspeeds(section):
    config = get_float16_config({"fp16": section})
    return CreateLossScaler(dtype=torch.half, static_loss_scale=config.loss_scale, dynamic_scaling=config.loss_scale == 0,
                            dynamic_loss_args=config.dynamic_loss_scale_args())


def fields(scaler):
    return {name: str(value) if isinstance(value, torch.dtype) else value for name, value in vars(scaler).items()}


def run_deepspeeds(scaler, overflows):
    states, stopped = [fields(scaler)], False
    for overflow in overflows:
        try:
            scaler.update_scale(overflow == "1")
        except Exception as error:
            assert "already at minimum" in str(error), error
            stopped = True
            break
        states.append(fields(scaler))
    return states, stopped


def random_case(source, steps):
    section = {"enabled": True, "initial_scale_power": source.randint(4, 24), "loss_scale_window": source.choice([40, 64, 100, 333, 1000]),
               "hysteresis": source.choice([1, 1, 2, 2, 3, 7]), "consecutive_hysteresis": source.random() < 0.5,
               "min_loss_scale": source.choice([1, 1, 2, 16, 1000])}
    if source.random() < 0.1:
        section["loss_scale"] = source.choice([1, 128, 1024.5])
    if source.random() < 0.3:  # most of the keys are seldom written
        section.pop(source.choice(sorted(section.keys() - {"enabled"})))
    rate, bursts = source.choice([0, 0.002, 0.01, 0.03, 0.2]), source.random() < 0.5
    overflows = ""
    while len(overflows) < steps:
        overflow = source.random() < rate
        overflows += ("1" * source.randint(1, 5) if bursts else "1") if overflow else "0"
    return section, overflows[:steps]


class Ours:
    def __init__(self, build):
        self.process = subprocess.Popen([f"{build}/tests/loss_scaler_steps"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, section, overflows, saved=None, restart_every=13):
        order = {"config": {"fp16": section}, "saved": saved, "overflows": overflows, "restart_every": restart_every}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["states"], answer["stopped"]


def from_folder(build, state):
    """Returns DeepSpeed's object from a folder that UniShard writes with this state."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([f"{build}/bin/write_deepspeed", "tests/golden/v1/global_step7", folder, "--read", "--stage", "2", "--world-size", "1",
                        "--loss-scaler", json.dumps(state)], check=True, stdout=subprocess.DEVNULL)
        path, = glob.glob(f"{folder}/*/*optim_states.pt")
        scaler = torch.load(path, weights_only=False)["optimizer_state_dict"]["loss_scaler"]
        assert fields(scaler) == state, (fields(scaler), state)
        return scaler


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--settings", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    logger.setLevel(logging.ERROR)
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
    comm.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    source, ours, failed = random.Random(5), Ours(arguments.build), 0
    counts = dict.fromkeys(("steps", "overflows", "falls", "rises", "stops", "static", "exchanged"), 0)
    for number in range(arguments.settings):
        section, overflows = random_case(source, arguments.steps)
        expected, stopped = run_deepspeeds(deepspeeds(section), overflows)
        assert expected[-1]["cur_scale"] <= 2.0**127, "the case grows too far: ours ends at 2^127"
        found = ours.run(section, overflows)
        scales = [state["cur_scale"] for state in expected]
        counts["steps"] += len(expected) - 1
        counts["overflows"] += overflows[:len(expected) - 1].count("1")
        counts["falls"] += sum(b < a for a, b in zip(scales, scales[1:]))
        counts["rises"] += sum(b > a for a, b in zip(scales, scales[1:]))
        counts["stops"] += stopped
        counts["static"] += not expected[0]["dynamic"]
        equal = found == (expected, stopped)
        half = len(expected) // 2
        rest = overflows[half:]
        equal &= ours.run(section, rest, saved=expected[half]) == (expected[half:], stopped)
        if number % 20 == 0:
            scaler = from_folder(arguments.build, found[0][half])
            equal &= run_deepspeeds(scaler, rest) == (expected[half:], stopped)
            counts["exchanged"] += 1
        if not equal:
            failed += 1
            at = next((i for i, (a, b) in enumerate(zip(found[0], expected)) if a != b), "the end or a resume")
            print(f"DIFFERENT: {section}, first at step {at}")
    print(f"{arguments.settings} settings: {counts}; {failed} different")
    comm.destroy_process_group()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
