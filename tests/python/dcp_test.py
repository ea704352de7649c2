#!/usr/bin/env python3
"""Tests unishard.dcp within one process; tests/interop/peers/dcp_jobs.py has jobs of several ranks.

    UNISHARD_LIBRARY_DIR=BUILD/bin PYTHONPATH=tools/python dcp_test.py
"""
import base64
import collections
import datetime
import io
import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import warnings
import zlib
from pathlib import Path

try:
    import numpy as np
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
except ImportError:
    sys.exit(77)

import unishard
import unishard.torch
from unishard import _native, _state_dict
from unishard._unpickling import require_data
from unishard.dcp import Reader, Writer

logging.disable()  # DCP logs every error that it raises
GOLDEN = Path(__file__).resolve().parent.parent / "golden"


class Odd:
    """An object that torch.load makes again, and that is no plain data."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __eq__(self, other):
        return torch.equal(self.tensor, other.tensor)


def job(value=1.0):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=value)
    model(torch.full((2, 64), value)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "value": value}


def zeroed(state):
    if isinstance(state, dict):
        return {key: zeroed(value) for key, value in state.items()}
    if isinstance(state, list):
        return [zeroed(value) for value in state]
    return torch.zeros_like(state) if isinstance(state, torch.Tensor) else None


class Saving(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        self.folder = Path(tempfile.mkdtemp(prefix="unishard-dcp-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def check(self, state, path, **reader):
        values = zeroed(state)
        dcp.load(values, storage_reader=Reader(path, **reader))
        torch.testing.assert_close(values, state, rtol=0, atol=0)

    def test_checkpoint_id_is_the_path_of_the_checkpoint(self):
        dcp.save(job(), checkpoint_id=self.folder / "run" / "a", storage_writer=Writer())
        values = zeroed(job())
        dcp.load(values, checkpoint_id=self.folder / "run" / "a", storage_reader=Reader())
        torch.testing.assert_close(values, job(), rtol=0, atol=0)
        dcp.save(job(2.0), storage_writer=Writer(self.folder / "run" / "b"))
        self.assertFalse((self.folder / "run" / "latest").exists())
        self.check(job(2.0), self.folder / "run")
        self.check(job(), self.folder / "run", tag="a")

    def test_views_that_torch_conjugates_or_negates_later_keep_their_values(self):
        numbers = torch.complex(torch.arange(6.0), torch.arange(6.0) + 1).reshape(2, 3)
        module = torch.nn.Module()
        for name, values in {"c": numbers.conj(), "n": numbers.conj().imag, "plain": numbers, "one": numbers[0, :1].conj()}.items():
            module.register_buffer(name, values)
        expected = {name: values.clone() for name, values in module.state_dict().items()}
        dcp.save({"model": module.state_dict()}, storage_writer=Writer(self.folder / "dcp"))
        unishard.torch.save(self.folder / "torch", module, step=0)
        for path in (self.folder / "dcp", self.folder / "torch"):
            with unishard.open(path) as checkpoint:
                found = {name: checkpoint[name].torch() for name in expected}
            torch.testing.assert_close(found, {name: values.resolve_conj().resolve_neg() for name, values in expected.items()}, rtol=0, atol=0)
            numbers.zero_()
            if path.name == "torch":
                unishard.torch.load(path, module)
            else:
                dcp.load({"model": module.state_dict()}, storage_reader=Reader(path))
            for name, values in expected.items():  # views of one memory: the last that is read counts for all of them
                self.assertTrue(torch.equal(module.state_dict()[name], values), name)

    def test_tensors_that_are_not_dense_are_named(self):
        for kind, tensor in {"sparse": torch.eye(3).to_sparse(), "meta": torch.empty(2, 2, device="meta")}.items():
            with self.assertRaisesRegex(dcp.api.CheckpointException, f"the.{kind}.one is a tensor that is .*{kind}"):
                dcp.save({"the": {kind: {"one": tensor}}, "w": torch.ones(2)}, storage_writer=Writer(self.folder / "run"))
            self.assertFalse((self.folder / "run").exists())

    def test_arguments_that_are_no_counts_and_no_checkpoints(self):
        for wrong in ({"step": 1.5}, {"step": -1}, {"step": True}, {"step": 1, "keep_last": -1}, {"step": 1, "keep_last": True}):
            with self.assertRaisesRegex(unishard.Error, "not an integer from 0 to"):
                Writer(self.folder / "run", **wrong)
            if "step" in wrong:
                with self.assertRaisesRegex(unishard.Error, "not an integer from 0 to"):
                    unishard.torch.save(self.folder / "run", torch.nn.Linear(2, 2), **wrong)
        with self.assertRaises(dcp.api.CheckpointException) as caught:
            dcp.save(job(), storage_writer=Writer(self.folder / "run", step=1, base=self.folder / "nothing"))
        self.assertIn("nothing is no UniShard checkpoint", str(caught.exception))
        self.assertFalse((self.folder / "run").exists())

    def test_no_checkpoint_is_saved_inside_another(self):
        dcp.save(job(), storage_writer=Writer(self.folder / "a"))
        before = sorted((self.folder / "a").iterdir())
        for inside in (Writer(self.folder / "a", step=5), Writer(self.folder / "a" / "deeper", step=5)):
            with self.assertRaises(dcp.api.CheckpointException) as caught:
                dcp.save(job(2.0), storage_writer=inside)
            self.assertRegex(str(caught.exception), "is one checkpoint and not a folder|is a checkpoint, so no other one can be saved in it")
        self.assertEqual(sorted((self.folder / "a").iterdir()), before)
        self.check(job(), self.folder / "a")

    def test_texts_that_are_not_unicode_come_back(self):
        state = {"w": torch.ones(2), "name": "a\ud800", "names": ["b", "\udc80"]}
        dcp.save(state, storage_writer=Writer(self.folder / "run", step=1))
        loaded = {"w": torch.zeros(2), "name": "", "names": []}
        dcp.load(loaded, storage_reader=Reader(self.folder / "run"))
        self.assertEqual({**loaded, "w": None}, {**state, "w": None})
        with self.assertRaisesRegex(dcp.api.CheckpointException, r"the key '.ud800' of the state dict is not valid Unicode"):
            dcp.save({"w": torch.ones(2), "\ud800": 1}, storage_writer=Writer(self.folder / "run", step=2))

    def test_one_writer_saves_again(self):
        writer = Writer(self.folder / "run", tag="one")
        for value in (1.0, 2.0):
            dcp.save(job(value), storage_writer=writer)
            self.check(job(value), self.folder / "run")

    def test_step_client_state_and_retention(self):
        for step in range(1, 4):
            dcp.save(job(float(step)), storage_writer=Writer(self.folder, step=step, keep_last=2, client_state={"epoch": step}))
        self.assertEqual(sorted(path.name for path in self.folder.glob("[!.]*")), ["global_step2", "global_step3", "latest"])
        with unishard.open(self.folder) as checkpoint:
            self.assertEqual((checkpoint.step, checkpoint.client_state), (3, {"value": 3.0, "epoch": 3}))
            # Nothing says which of two matrices of one shape a numbered state belongs to.
            self.assertEqual(checkpoint.states("0.weight"), ["weights"])
            self.assertEqual(checkpoint.states("state.0"), ["exp_avg", "exp_avg_sq"])

    def test_a_save_that_begins_late_is_not_the_newest(self):
        path = self.folder / "run"
        late, newest = (Writer(path, step=step, keep_last=1) for step in (3, 4))
        for writer in (newest, late):  # as threads of async_save() may begin them
            dcp.save(job(), storage_writer=writer)
        self.assertEqual((path / "latest").read_text(), "global_step4\n")
        self.check(job(), path)
        dcp.save(job(), storage_writer=Writer(path, step=2, keep_last=1))  # a run that went back
        self.assertEqual((path / "latest").read_text(), "global_step2\n")

    def test_a_script_that_ends_completes_its_asynchronous_save(self):
        script = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from unishard.dcp import Writer
dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + ".store", rank=0, world_size=1)
dcp.async_save({"w": torch.arange(1e5)}, storage_writer=Writer(sys.argv[1], step=1))
"""
        for number in range(3):
            folder = self.folder / f"run{number}"
            subprocess.run([sys.executable, "-c", script, str(folder)], check=True, capture_output=True)
            with unishard.open(folder) as checkpoint:
                self.assertTrue(torch.equal(checkpoint["w"].torch(), torch.arange(1e5)))

    def test_an_incremental_save_shares_what_is_equal(self):
        state = {**job(), "frozen": torch.randn(1 << 20)}
        for step in (1, 2):
            state["value"] = step
            dcp.save(state, storage_writer=Writer(self.folder, step=step, base="latest"))
        shared = unishard.inspect(self.folder)["shards"][0]["shared_bytes"]
        self.assertGreater(shared, 4 << 20)
        shutil.rmtree(self.folder / "global_step1")
        self.check(state, self.folder)
        self.assertTrue(unishard.verify(self.folder, deep=True)["ok"])

    def test_a_planner_that_keeps_its_plans(self):
        for value in (1.0, 2.0, 3.0):
            dcp.save(job(value), storage_writer=Writer(self.folder / str(value)), planner=DefaultSavePlanner(enable_plan_caching=True))
            self.check(job(value), self.folder / str(value))

    def test_whole_state_dicts_as_objects(self):
        state = {"model": {"a": torch.arange(3.0)}, "odd": Odd(torch.arange(4)), "step": 3}
        dcp.save(state, storage_writer=Writer(self.folder / "one"), planner=DefaultSavePlanner(flatten_state_dict=False))
        values = {"model": {}, "odd": None, "step": 0}
        with self.assertRaisesRegex(dcp.api.CheckpointException, "the object odd is more than data .*Odd"):
            dcp.load(values, storage_reader=Reader(self.folder / "one"),
                     planner=dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False))
        self.assertIsNone(values["odd"])
        dcp.load(values, storage_reader=Reader(self.folder / "one", weights_only=False),
                 planner=dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False))
        self.assertTrue(torch.equal(values["model"]["a"], state["model"]["a"]))
        self.assertEqual((values["odd"], values["step"]), (state["odd"], 3))
        described = unishard.inspect(self.folder / "one")
        self.assertIn('left out: weight "odd": the tensors inside of this object, which torch alone can load', described["producer"]["notes"])

    def test_objects_that_are_data_are_loaded(self):
        state = {"w": torch.ones(2), "when": datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc), "rate": np.float32(0.5),
                 "counts": np.arange(5), "seen": {1, 2}, "path": pathlib.PurePosixPath("a/b"), "order": collections.OrderedDict(b=1, a=2)}
        dcp.save(state, storage_writer=Writer(self.folder / "one"))
        values = zeroed(state)
        dcp.load(values, storage_reader=Reader(self.folder / "one"))
        np.testing.assert_array_equal(values.pop("counts"), state.pop("counts"))
        self.assertTrue(torch.equal(values.pop("w"), state.pop("w")))
        self.assertEqual(values, state)

    def test_a_dcp_folder_made_of_it_has_its_keys(self):
        state = {**job(), "net": {"best": torch.ones(2)}, "odd": {"pair": (1, 2)}}
        dcp.save(state, storage_writer=Writer(self.folder / "one", client_state={"run": "x"}))
        dcp.save(state, checkpoint_id=self.folder / "torch")
        unishard.convert(self.folder / "one", self.folder / "dcp", to="dcp")
        wanted, found = (dcp.FileSystemReader(self.folder / name).read_metadata() for name in ("torch", "dcp"))
        self.assertEqual(set(found.state_dict_metadata), {*wanted.state_dict_metadata, "run"})
        self.assertEqual({**wanted.planner_data, "run": ("run",)}, found.planner_data)
        values = zeroed(state)
        dcp.load(values, checkpoint_id=self.folder / "dcp")
        torch.testing.assert_close(values, state, rtol=0, atol=0)

    def test_a_forged_object_runs_no_code(self):
        class Forged:
            def __reduce__(self):
                return os.mkdir, (str(folder / "ran"),)

        folder = self.folder
        dcp.save({"w": torch.ones(2), "o": 3}, storage_writer=Writer(folder / "one"))
        manifest = next((folder / "one").rglob("manifest.json"))
        forged = json.loads(manifest.read_text())
        content = io.BytesIO()
        torch.save(Forged(), content)
        for row in forged["producer"]["state_dict"]["objects"]:
            row.append(base64.b64encode(zlib.compress(content.getvalue())).decode())
        with unishard.open(folder / "one") as checkpoint:
            found = _state_dict._recorded(checkpoint, forged["producer"]["state_dict"])
        with self.assertRaisesRegex(unishard.Error, "more than data .*mkdir"):
            require_data(found["o"].pickle, "o")
        self.assertTrue(found["o"].is_foreign)
        self.assertFalse((folder / "ran").exists())

    def test_objects_that_are_too_large_are_named(self):
        with self.assertRaises(dcp.api.CheckpointException) as caught:
            dcp.save({"small": 1, "blob": bytes(65 << 20)}, storage_writer=Writer(self.folder / "one"))
        self.assertIn("blob", str(caught.exception))
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_driver_that_hides_its_planner(self):
        """Then nothing is known of equal tensors and of numbers until the data is written; every key must come back all the same."""
        state, writer, hidden = job(), Writer(self.folder / "one"), DefaultSavePlanner()
        state["model"]["tied"] = state["model"]["0.weight"]
        hidden.set_up_planner(state, None, True)
        writer.set_up_storage_writer(True)
        plans, metadata = hidden.create_global_plan([writer.prepare_local_plan(hidden.create_local_plan())])
        plan = hidden.finish_plan(writer.prepare_global_plan(plans)[0])
        writer.finish(metadata, [writer.write_data(plan, hidden).wait()])
        self.check(state, self.folder / "one")
        with unishard.open(self.folder / "one") as checkpoint:
            self.assertEqual(checkpoint.states("state.0"), ["exp_avg", "exp_avg_sq"])
            self.assertEqual((checkpoint.step, checkpoint.aliases), (1, {}))

    def test_data_that_changes_after_planning_fails(self):
        class Changing(DefaultSavePlanner):
            def transform_object(self, item, value):
                return value.double() if item.index.fqn == "model.0.weight" else super().transform_object(item, value)

        with self.assertRaises(dcp.api.CheckpointException) as caught:
            dcp.save(job(), storage_writer=Writer(self.folder / "one"), planner=Changing())
        self.assertIn("model.0.weight is torch.float64", str(caught.exception))
        self.assertEqual(list(self.folder.iterdir()), [])


    def test_the_end_of_the_process_removes_what_another_rank_has_spoilt(self):
        script = ("import sys, torch; from torch.distributed.checkpoint.default_planner import DefaultSavePlanner\n"
                  "from unishard.dcp import Writer\n"
                  "hidden, writer = DefaultSavePlanner(), Writer(sys.argv[1], step=1)\n"
                  "hidden.set_up_planner({'a': torch.ones(3)}, None, True)\n"
                  "writer.set_up_storage_writer(True)\n"
                  "plans, _ = hidden.create_global_plan([writer.prepare_local_plan(hidden.create_local_plan())])\n"
                  "plan = writer.prepare_global_plan(plans)[0]\n"
                  "writer.write_data(plan, hidden)\n"
                  "import os; print(sorted(os.listdir(sys.argv[1])))\n")
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", script, self.folder], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("global_step1.partial-", done.stdout)
        self.assertEqual(list(self.folder.iterdir()), [])


class Loading(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        self.folder = Path(tempfile.mkdtemp(prefix="unishard-dcp-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def test_checkpoints_of_other_programs_have_the_usual_keys(self):
        for to in ("native", "deepspeed", "torch", "hdf5"):
            made = self.folder / (to + {"torch": ".pt", "hdf5": ".h5"}.get(to, ""))
            unishard.convert(GOLDEN / "v1", made, to=to)
            with unishard.open(GOLDEN / "v1") as checkpoint:
                expected = {name: checkpoint[name].torch() for name in [*checkpoint.names(), *checkpoint.aliases]}
                moments = {name: {state: checkpoint[name, state].torch() for state in ("exp_avg", "exp_avg_sq")}
                           for name in checkpoint.names() if "exp_avg" in checkpoint.states(name)}
                settings = checkpoint.groups[0]
            state = {"model": expected, "optim": {"state": moments, "param_groups": [{"weight_decay": 0.0, "betas": None}]}}
            values = zeroed(state)
            dcp.load(values, storage_reader=Reader(made))
            torch.testing.assert_close(values["model"], expected, rtol=0, atol=0)
            torch.testing.assert_close(values["optim"]["state"], moments, rtol=0, atol=0)
            self.assertEqual(values["optim"]["param_groups"][0], {"weight_decay": settings["weight_decay"],
                                                                     "betas": (0.9, 0.999)})

    def test_dcps_own_folder_with_nested_dicts(self):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        weights, states = torch.distributed.checkpoint.state_dict.get_state_dict(model, optimizer)
        state = {"model": weights, "optim": states, "sched": schedule.state_dict(), "progress": {"epoch": 3, "seen": [1, {"a": 2}]}}
        dcp.save(state, checkpoint_id=self.folder / "own")
        values = zeroed(state)
        dcp.load(values, storage_reader=Reader(self.folder / "own"))
        self.assertEqual((values["sched"], values["progress"]), (state["sched"], state["progress"]))
        self.assertTrue(torch.equal(values["model"]["weight"], model.weight))

    def test_the_reader_has_the_keys_of_a_conversion(self):
        for make in (torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.ASGD, torch.optim.AdamW):
            model = torch.nn.Linear(3, 3)
            optimizer = make(model.parameters())
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            unishard.torch.save(self.folder / make.__name__, model, optimizer, step=1)
            converted = self.folder / f"{make.__name__}_dcp"
            unishard.convert(self.folder / make.__name__, converted, to="dcp")
            state = dict(zip(("model", "optim"), torch.distributed.checkpoint.state_dict.get_state_dict(model, optimizer)))
            for reader in (Reader(self.folder / make.__name__), Reader(converted), dcp.FileSystemReader(converted)):
                with self.subTest(optimizer=make.__name__, reader=reader):
                    values = zeroed(state)
                    dcp.load(values, storage_reader=reader)
                    torch.testing.assert_close(values["optim"]["state"], state["optim"]["state"], rtol=0, atol=0)
                    self.assertEqual(values["optim"]["param_groups"][0]["lr"], state["optim"]["param_groups"][0]["lr"])

    def test_a_client_state_of_another_loader_has_the_keys_of_its_members(self):
        client_state = {"sched": {"last_epoch": 4, "betas": (1, 2.5), "lrs": [0.1, 0.2]}, "rng": [{"seed": 1}, 7],
                        "when": datetime.date(2026, 1, 2), "epoch": 3}
        unishard.torch.save(self.folder / "run", torch.nn.Linear(2, 2), step=1, client_state=client_state)
        values = {"sched": {"last_epoch": 0, "betas": None, "lrs": None}, "rng": [{"seed": 0}, 0], "when": None, "epoch": 0}
        dcp.load(values, storage_reader=Reader(self.folder / "run"))
        self.assertEqual(values, client_state)

    def test_keys_survive_a_reshard(self):
        state = {**job(), "experts": torch.randn(4, 5, 6), "lists": [torch.ones(2), {"x": (1, 2)}]}
        dcp.save(state, storage_writer=Writer(self.folder / "one"))
        unishard.reshard(self.folder / "one", self.folder / "more", world_size=3, compress="zstd")
        values = zeroed(state)
        dcp.load(values, storage_reader=Reader(self.folder / "more"))
        torch.testing.assert_close(values, state, rtol=0, atol=0)

    def test_a_damaged_byte_names_the_tensor(self):
        state = job()
        dcp.save(state, storage_writer=Writer(self.folder / "one"))
        shard = next((self.folder / "one").glob("shard-*"))
        content = bytearray(shard.read_bytes())
        content[content.index(state["model"]["0.weight"].numpy().tobytes()[:16]) + 5] ^= 1
        shard.write_bytes(content)
        with self.assertRaises(dcp.api.CheckpointException) as caught:
            dcp.load(zeroed(state), storage_reader=Reader(self.folder / "one"))
        self.assertEqual([cause.tensor for cause, _ in caught.exception.failures.values()], [("0.weight", "weights")])

    def test_damaged_keys_are_an_error(self):
        catalog = {"tensors": [{"name": "a", "state": "weights", "dtype": "float32", "shape": [0]}], "aliases": [], "step": 0, "world_size": 1}
        good = {"tensors": [["a", [["a", False]], "a", "weights"]], "constants": [["c", [], "float32", [], [0, 0, 0, 0]]],
                "objects": [["o", [["o", False]], 1]], "order": [2, 0, 1]}
        bad = [{}, {**good, "tensors": [["a"]]}, {**good, "tensors": 7}, {**good, "tensors": [["a", 7, "a", "weights"]]},
               {**good, "constants": [["c", [], "float32", [2], [0, 0, 0, 0]]]}, {**good, "constants": [["c", [], "nothing", [], [0]]]},
               {**good, "constants": [["c", [], "float32", [], [0, 300]]]}, {**good, "objects": [["o"]]},
               {**good, "objects": [["o", [["o", True]], 1]]}, {**good, "objects": [["o", [["o", False]], 1, "!"]]},
               {**good, "objects": [["o", [["o", False]], 1, base64.b64encode(zlib.compress(bytes(65 << 20))).decode()]]},
               {**good, "objects": [["o", [["o", False]], 1, base64.b64encode(zlib.compress(b"cut short")[:-4]).decode()]]}, {**good, "order": [1, 2, 3]}, {**good, "order": [0, 0, 1]}, [good], "text"]
        for number, described in enumerate([good, *bad]):
            save = _native.Save(str(self.folder), f"tag{number}", {**catalog, "producer": {"state_dict": described}}, {})
            shard = _native.Shard(save.place, catalog, 0, [], {})
            save.publish([shard.finish()])
            shard.close()
            save.close()
            values = {"a": torch.ones(0), "o": None} if number == 0 else {"model": {"a": torch.ones(0)}}
            try:
                dcp.load(values, storage_reader=Reader(self.folder, tag=f"tag{number}"))
                self.assertTrue(number == 0 or described in ({}, "text") or isinstance(described, list), json.dumps(described))
            except dcp.api.CheckpointException as error:
                self.assertIn("the keys of its state dict are damaged", str(error), json.dumps(described))


if __name__ == "__main__":
    unittest.main()
