#!/usr/bin/env python3
"""Integrations with accelerate and transformers in one process: python3 integrations_test.py (UNISHARD_LIBRARY_DIR, as in package_test.py)

Kills happen in processes of their own. Jobs of several ranks: tests/interop/peers/trainer_jobs.py.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

KILLS = int(os.environ.get("UNISHARD_KILLS", 3))


def job(folder, steps):
    """Loads, prints the step of each part, then saves at every step and prints it once the save is done."""
    import accelerate
    import torch
    import unishard.integrations.accelerate as ua

    class Counter:
        step = 0

        def state_dict(self):
            return {"step": self.step}

        def load_state_dict(self, state):
            self.step = state["step"]

    accelerator, counter = accelerate.Accelerator(cpu=True), Counter()
    models = [torch.nn.Linear(50000, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5) for model in models]
    schedulers = [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0) for optimizer in optimizers]
    prepared = accelerator.prepare(*models, *optimizers, *schedulers)
    accelerator.register_for_checkpointing(counter)
    if os.path.isdir(folder):
        ua.load_state(accelerator, folder)
        weights = [int(model.bias.item()) for model in prepared[:2]]
        print("loaded", *weights, *(scheduler.scheduler.last_epoch for scheduler in prepared[4:]), counter.step, flush=True)
    for _ in range(steps):
        counter.step += 1
        for model, optimizer, scheduler in zip(prepared[:2], prepared[2:4], prepared[4:]):
            model(torch.ones(1, 50000)).sum().backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            with torch.no_grad():
                model.bias.fill_(counter.step)
        ua.save_state(accelerator, folder, step=counter.step)
        print("saved", counter.step, flush=True)


class Accelerate(unittest.TestCase):
    def test_a_killed_save_leaves_the_parts_of_one_step(self):
        with tempfile.TemporaryDirectory() as scratch:
            folder, last = os.path.join(scratch, "state"), 0
            for kill in range(KILLS + 1):
                command = [sys.executable, __file__, "--job", folder, "100000" if kill < KILLS else "0"]
                child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                wanted = random.randint(1, 4)
                for line in child.stdout:
                    word, *numbers = line.split()
                    if word == "loaded":
                        self.assertEqual(len(set(numbers)), 1, line)
                        self.assertGreaterEqual(int(numbers[0]), last, "an acknowledged save is lost")
                    last, wanted = max(last, int(numbers[0])), wanted - (word == "saved")
                    if wanted == 0:
                        child.send_signal(signal.SIGKILL)
                        wanted -= 1
                child.stdout.close()
                self.assertEqual(child.wait(), -signal.SIGKILL if kill < KILLS else 0)

    def test_a_failed_save_leaves_the_one_before(self):
        import accelerate
        import torch
        import unishard
        import unishard.integrations.accelerate as ua
        with tempfile.TemporaryDirectory() as folder:
            accelerator = accelerate.Accelerator(cpu=True)
            model = torch.nn.Linear(2, 1)
            model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
            ua.save_state(accelerator, folder, step=1)
            before = sorted(Path(folder).rglob("*"))
            with self.assertRaises(unishard.Error):
                ua.save_state(accelerator, folder, step=2, tag="../x")
            self.assertEqual(sorted(Path(folder).rglob("*")), before)
            ua.load_state(accelerator, folder)

    def test_checkpoints_that_stay_keep_their_files(self):
        import accelerate
        import torch
        import unishard
        import unishard.integrations.accelerate as ua
        with tempfile.TemporaryDirectory() as folder:
            accelerator = accelerate.Accelerator(cpu=True)
            accelerator.prepare(torch.nn.Linear(2, 1))
            for step in (1, 2, 3):
                ua.save_state(accelerator, folder, step=step, keep_last=2)
            kept = {path.name for path in Path(folder).glob("accelerate-*")}
            named = set()
            for step in (2, 3):
                with unishard.open(Path(folder) / "unishard", tag=f"global_step{step}") as checkpoint:
                    named.add(checkpoint.client_state["accelerate"]["folder"])
            self.assertEqual(kept, named)
            self.assertEqual(len(kept), 2)

    def test_a_save_that_is_interrupted_once_it_is_published_keeps_its_files(self):
        from unittest import mock

        import accelerate
        import torch
        import unishard.integrations.accelerate as ua
        with tempfile.TemporaryDirectory() as folder:
            accelerator = accelerate.Accelerator(cpu=True)
            model = accelerator.prepare(torch.nn.Linear(2, 1))
            save = ua.jobs.save

            def save_and_stop(*arguments, **options):
                save(*arguments, **options)
                raise KeyboardInterrupt

            with mock.patch.object(ua.jobs, "save", save_and_stop), self.assertRaises(KeyboardInterrupt):
                ua.save_state(accelerator, folder, step=1)
            with torch.no_grad():
                model.bias.fill_(5.0)
            ua.load_state(accelerator, folder)
            self.assertNotEqual(model.bias.item(), 5.0)

    def test_folders_that_accelerate_names_have_its_files(self):
        import accelerate
        import torch
        import unishard.integrations.accelerate as ua
        with tempfile.TemporaryDirectory() as folder:
            settings = accelerate.utils.ProjectConfiguration(folder, automatic_checkpoint_naming=True)
            accelerator = accelerate.Accelerator(cpu=True, project_config=settings)
            model = accelerator.prepare(torch.nn.Linear(2, 1))
            for output in (None, os.path.join(folder, "ignored")):
                saved = ua.save_state(accelerator, output, step=1)
                self.assertTrue({"random_states_0.pkl", "unishard"} <= set(os.listdir(saved)))
            with torch.no_grad():
                model.bias.fill_(5.0)
            ua.load_state(accelerator)
            self.assertNotEqual(model.bias.item(), 5.0)


class Transformers(unittest.TestCase):
    def test_files_of_two_checkpoints_are_not_resumed(self):
        import torch
        import unishard
        import unishard.torch
        from unishard.integrations.transformers import _require_one_save
        with tempfile.TemporaryDirectory() as folder:
            unishard.torch.save(folder, torch.nn.Linear(2, 1), step=20)
            state = Path(folder, "trainer_state.json")
            state.write_text(json.dumps({"global_step": 20}))
            _require_one_save(folder)
            state.write_text(json.dumps({"global_step": 16}))
            with self.assertRaisesRegex(unishard.Error, "is of step 16, and the UniShard checkpoint global_step20 of step 20"):
                _require_one_save(folder)

    def test_what_a_killed_save_left_is_no_checkpoint(self):
        import torch
        import unishard.torch
        from unishard.integrations.transformers import _has_unishard
        with tempfile.TemporaryDirectory() as folder:
            unishard.torch.save(folder, torch.nn.Linear(2, 1), step=20)
            self.assertTrue(_has_unishard(folder))
            Path(folder, "latest").unlink()
            Path(folder, "global_step20").rename(Path(folder, "global_step20.partial-1a2b"))
            self.assertFalse(_has_unishard(folder))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        job(sys.argv[2], int(sys.argv[3]))
    else:
        unittest.main()
