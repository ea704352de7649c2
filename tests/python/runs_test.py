#!/usr/bin/env python3
"""Tests that a job replaces, removes and hides no checkpoint of another run or another program.

    UNISHARD_LIBRARY_DIR=BUILD/bin PYTHONPATH=tools/python runs_test.py
"""
import importlib.util
import json
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import unittest
import warnings
from pathlib import Path

try:
    import torch
    import torch.distributed.checkpoint as dcp
except ImportError:
    sys.exit(77)

import unishard
import unishard.torch
from unishard.dcp import Reader, Writer

logging.disable()  # DCP logs every error that it raises
warnings.simplefilter("ignore")


def linear(value):
    model = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.weight, value)
    return model


def save_by_torch(folder, step, **options):
    unishard.torch.save(folder, linear(float(step)), step=step, **options)


def save_by_dcp(folder, step, **options):
    dcp.save({"w": torch.full((3,), float(step))}, storage_writer=Writer(folder, step=step, **options))


SAVES = {"unishard.torch": save_by_torch, "unishard.dcp": save_by_dcp}


def load_and_save(save, folder, tag, step, **options):
    if save is save_by_torch:
        unishard.torch.load(folder, linear(0.0), tag=tag)
    else:
        dcp.load({"w": torch.zeros(3)}, storage_reader=Reader(folder, tag=tag))
    save(folder, step, **options)


def save_twice(save, folder):
    save(folder, 2)
    save(folder, 2)


def report_outcome(queue, work, arguments, options):
    """Puts code and text of the error that the work raises; DCP wraps what a rank raises."""
    try:
        work(*arguments, **options)
        queue.put(("", ""))
    except (Exception, dcp.api.CheckpointException) as error:
        causes = [cause for cause, _ in getattr(error, "failures", {}).values()] or [error]
        queue.put((getattr(causes[0], "code", type(causes[0]).__name__), str(causes[0])))


def as_another_job(work, *arguments, **options):
    """Runs the work in a process of its own. Returns code and text of its error."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.checkpoint", "unishard.torch", "unishard.dcp"])
    queue = context.Queue()
    process = context.Process(target=report_outcome, args=(queue, work, arguments, options))
    process.start()
    outcome = queue.get(timeout=120)
    process.join(120)
    return outcome


class Folders(unittest.TestCase):
    def setUp(self):
        self.top = Path(tempfile.mkdtemp(prefix="unishard-runs-"))
        self.addCleanup(shutil.rmtree, self.top)


class Runs(Folders):
    def each(self):
        """Yields a way to save and a folder with the three checkpoints of another run."""
        for name, save in SAVES.items():
            with self.subTest(saves=name):
                folder = self.top / name
                for step in (1, 2, 3):
                    self.assertEqual(as_another_job(save, folder, step, fresh=True), ("", ""))
                yield save, folder

    def content(self, folder):
        return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*"))
                if path.is_file() and not path.name.startswith(".")}

    def test_a_job_that_has_loaded_nothing_is_refused_among_checkpoints(self):
        for save, folder in self.each():
            before = self.content(folder)
            for options in ({}, {"keep_last": 1}, {"tag": "best"}):
                code, text = as_another_job(save, folder, 1, **options)
                self.assertEqual(code, "already exists", text)
                self.assertRegex(text, "contains the checkpoints of a run, the newest of which is global_step3.*fresh=True")
            self.assertEqual(self.content(folder), before)

    def test_a_job_that_has_loaded_one_goes_on(self):
        for save, folder in self.each():
            self.assertEqual(as_another_job(load_and_save, save, folder, "global_step1", 2, keep_last=2), ("", ""))
            self.assertEqual(sorted(path.name for path in folder.glob("[!.]*")), ["global_step2", "global_step3", "latest"])
            self.assertEqual((folder / "latest").read_text().strip(), "global_step2")

    def test_beside_another_run_nothing_is_replaced_or_removed(self):
        for save, folder in self.each():
            before = self.content(folder)
            code, text = as_another_job(save, folder, 3, fresh=True)
            self.assertEqual(code, "already exists", text)
            code, text = as_another_job(save, folder, 4, fresh=True, keep_last=1)
            self.assertRegex(text, "keep_last would remove checkpoints of another run")
            self.assertEqual(self.content(folder), before)
            self.assertEqual(as_another_job(save, folder, 4, fresh=True), ("", ""))
            after = self.content(folder)
            self.assertEqual({name: after[name] for name in before if name != "latest"},
                             {name: text for name, text in before.items() if name != "latest"})

    def test_a_job_replaces_what_it_has_saved_itself(self):
        for name, save in SAVES.items():
            self.assertEqual(as_another_job(save_twice, save, self.top / name), ("", ""))

    def test_two_jobs_do_not_save_to_one_folder(self):
        for name, save in SAVES.items():
            with self.subTest(saves=name):
                folder = self.top / name
                save(folder, 1)
                before = self.content(folder)
                for outcome in (as_another_job(save, folder, 2, fresh=True), as_another_job(load_and_save, save, folder, None, 2)):
                    self.assertEqual(outcome[0], "busy", outcome[1])
                self.assertEqual(self.content(folder), before)
                save(folder, 2)

    def test_a_folder_that_was_removed_is_claimed_again(self):
        for name, save in SAVES.items():
            save(self.top / name, 1)
            shutil.rmtree(self.top / name)
            save(self.top / name, 2)
            self.assertEqual(as_another_job(save, self.top / name, 3, fresh=True)[0], "busy")

    def test_paths_without_a_tag_leave_their_neighbours_alone(self):
        for name in ("a", "b"):
            dcp.save({"w": torch.ones(3)}, storage_writer=Writer(self.top / name))
        self.assertEqual(sorted(path.name for path in self.top.iterdir()), ["a", "b"])
        with self.assertRaisesRegex(unishard.Error, "keep_last counts the tags of a folder"):
            Writer(self.top / "b", keep_last=1)

    def test_a_latest_of_somebody_else_stays(self):
        for name, save in SAVES.items():
            folder = self.top / name
            (folder / "global_step7").mkdir(parents=True)
            for text in ("my notes: do not lose\nline 2\n", "x" * 5000, "global_step7"):
                (folder / "latest").write_text(text)
                code, problem = as_another_job(save, folder, 1)
                self.assertEqual(code, "already exists", problem)
                self.assertEqual((folder / "latest").read_text(), text)
                self.assertFalse((folder / "global_step1").exists())

    def test_a_checkpoint_of_dcp_gets_no_tags(self):
        dcp.save({"w": torch.ones(3)}, checkpoint_id=self.top / "theirs")
        before = self.content(self.top)
        for save in SAVES.values():
            code, text = as_another_job(save, self.top / "theirs", 2, fresh=True)
            self.assertEqual(code, "already exists", text)
        with self.assertRaisesRegex(dcp.api.CheckpointException, "holds a checkpoint of another program"):
            dcp.save({"w": torch.zeros(3)}, storage_writer=Writer(self.top / "theirs" / "inside"))
        self.assertEqual(self.content(self.top), before)

    def test_of_two_programs_checkpoints_in_one_folder_none_is_guessed(self):
        save_by_dcp(self.top / "run", 1)
        dcp.save({"w": torch.full((3,), 2.0)}, checkpoint_id=self.top / "run")
        with self.assertRaisesRegex(dcp.api.CheckpointException, "name the folder of a tag"):
            dcp.load({"w": torch.zeros(3)}, storage_reader=Reader(self.top / "run"))
        for reader in (Reader(self.top / "run", tag="global_step1"), Reader(self.top / "run" / "global_step1")):
            loaded = {"w": torch.zeros(3)}
            dcp.load(loaded, storage_reader=reader)
            self.assertEqual(loaded["w"].tolist(), [1.0] * 3)

    def test_one_writer_saves_on_several_threads(self):
        writer = Writer()
        for _ in range(5):
            futures = [dcp.async_save({"w": torch.full((300_000,), float(number))}, checkpoint_id=self.top / str(number),
                                      storage_writer=writer, no_dist=True) for number in range(4)]
            for future in futures:
                future.result()
            for number in range(4):
                loaded = {"w": torch.zeros(300_000)}
                dcp.load(loaded, storage_reader=Reader(self.top / str(number)), no_dist=True)
                self.assertTrue(torch.equal(loaded["w"], torch.full((300_000,), float(number))))

    def test_latest_follows_the_save_that_was_started_last(self):
        begun, may_end = threading.Event(), threading.Event()

        class Slow(Writer):
            def write_data(self, plan, planner):
                begun.set()
                may_end.wait(60)
                return super().write_data(plan, planner)

        folder = self.top / "run"
        late = Writer(folder, step=3, keep_last=1)  # made first, used last
        slow = dcp.async_save({"w": torch.ones(3)}, no_dist=True, storage_writer=Slow(folder, step=1, keep_last=1))
        self.assertTrue(begun.wait(60))
        save_by_dcp(folder, 2, keep_last=1)
        may_end.set()
        slow.result()
        self.assertEqual((folder / "latest").read_text().strip(), "global_step2")
        self.assertTrue((folder / "global_step1").exists())
        dcp.save({"w": torch.ones(3)}, storage_writer=late)
        self.assertEqual((folder / "latest").read_text().strip(), "global_step3")
        self.assertEqual([path.name for path in folder.glob("global_step*")], ["global_step3"])

    def test_many_saves_at_once_leave_the_newest(self):
        futures = [dcp.async_save({"w": torch.ones(3_000_000 // 9 ** step)}, no_dist=True, storage_writer=Writer(self.top / "run", step=step, keep_last=1))
                   for step in range(1, 6)]
        for future in futures:
            future.result()
        newest = (self.top / "run" / "latest").read_text().strip()
        numbers = {path.parent.name: json.loads(path.read_text())["commit_number"] for path in (self.top / "run").glob("*/manifest.json")}
        self.assertEqual((newest, numbers[newest]), ("global_step5", max(numbers.values())))

    def test_overlapping_saves_of_one_tag_are_refused(self):
        writer = Writer(self.top / "run", step=1)
        futures = [dcp.async_save({"w": torch.ones(3_000_000)}, storage_writer=writer, no_dist=True) for _ in range(6)]
        failures = [future.exception() for future in futures if future.exception()]
        self.assertLess(len(failures), 6)
        for failure in failures:
            self.assertRegex(str(failure), "is being written")
        self.assertTrue(unishard.verify(self.top / "run", deep=True)["ok"])

    def test_folders_whose_names_are_no_text(self):
        folder = os.fsencode(self.top) + b"/x\x80y"
        unishard.torch.save(folder, linear(1.0), step=1)
        unishard.torch.load(os.fsdecode(folder), linear(0.0))
        dcp.save({"w": torch.ones(3)}, storage_writer=Writer(Path(os.fsdecode(folder + b"2")), step=1))
        unishard.torch.save(os.fsdecode(folder), linear(2.0), step=2)
        self.assertEqual(unishard.open(folder).step, 2)


@unittest.skipUnless(importlib.util.find_spec("accelerate"), "accelerate is not installed")
class PlainStates(Folders):
    """Folders in which a program has saved without UniShard, too."""

    def test_accelerate_and_unishard_do_not_share_a_folder(self):
        from accelerate import Accelerator
        from unishard.integrations import accelerate as plugin
        accelerator = Accelerator(cpu=True)
        model = accelerator.prepare(linear(1.0))
        for first, second, error in ((accelerator.save_state, lambda folder: plugin.save_state(accelerator, folder), "already exists"),
                                     (lambda folder: plugin.save_state(accelerator, folder), accelerator.save_state, None)):
            folder = self.top / str(error)
            torch.nn.init.constant_(model.weight, 1.0)
            first(str(folder))
            torch.nn.init.constant_(model.weight, 2.0)
            if error:
                with self.assertRaisesRegex(unishard.Error, "which accelerate has saved without UniShard") as caught:
                    second(str(folder))
                self.assertEqual((caught.exception.code, (folder / "unishard").exists()), (error, False))
                continue
            second(str(folder))
            with self.assertRaisesRegex(unishard.Error, "which accelerate has saved without UniShard"):
                plugin.load_state(accelerator, folder)
            with self.assertRaisesRegex(unishard.Error, "saved without UniShard and the checkpoints of UniShard: name .*unishard, or"):
                unishard.open(folder)
            self.assertEqual(unishard.open(folder / "unishard")["weight"].numpy().max(), 1.0)

    def test_a_trainer_and_unishard_do_not_share_a_folder(self):
        folder = self.top / "checkpoint-6"
        save_by_torch(folder, 6)
        torch.save({"state": {}, "param_groups": []}, folder / "optimizer.pt")
        with self.assertRaisesRegex(unishard.Error, "saved without UniShard and the checkpoints of UniShard: name the folder of a tag"):
            unishard.open(folder)
        self.assertEqual(unishard.open(folder / "global_step6").step, 6)


class Arguments(unittest.TestCase):
    def test_wrong_ones_are_named(self):
        for wrong, text in (({"step": 1 << 63}, "step is 9223372036854775808"), ({"step": 1, "compress": 5}, "compress is 5"),
                            ({"step": 1, "tag": 5}, "tag is 5"), ({"step": 1, "keep_last": 1 << 32}, "keep_last is")):
            for save in (lambda **options: Writer("x", **options), lambda **options: unishard.torch.save("x", linear(1.0), **options)):
                with self.assertRaisesRegex(unishard.Error, text):
                    save(**wrong)
        for make, text in ((lambda: unishard.torch.save("x", linear(1.0), step=None), "step is None"),
                           (lambda: Writer("x", step=1, keep_last=None), "keep_last is None"),
                           (lambda: Writer("x", step=1, compress=None), "compress is None"),
                           (lambda: Writer("x", step=1, client_state="x"), "client_state is 'x'"),
                           (lambda: unishard.torch.save("x", linear(1.0), step=1, client_state=[1]), "client_state is .1."),
                           (lambda: Reader("x", threads=0), "threads is 0"), (lambda: Reader("x", threads="4"), "threads is '4'")):
            with self.assertRaisesRegex(unishard.Error, text):
                make()
        for make in (lambda: Writer("", step=1), lambda: unishard.torch.save("", linear(1.0), step=1)):
            with self.assertRaisesRegex(unishard.Error, "the folder is an empty text"):
                make()


if __name__ == "__main__":
    unittest.main(warnings="ignore")
