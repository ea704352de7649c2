#!/usr/bin/env python3
"""Tests unishard.verl without verl; tests/interop/peers/verl_resumes.py has jobs of several ranks that resume.

    UNISHARD_LIBRARY_DIR=BUILD/bin PYTHONPATH=tools/python verl_test.py
"""
import contextlib
import io
import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import torch
except ImportError:
    sys.exit(77)

import unishard
import unishard.torch
import unishard.verl

SIZES = {"embed.weight": (7, 4), "norm.weight": (4,), "head.weight": (3, 4)}
ORDER = list(SIZES)


def training_file(path, groups=1):
    """Saves a model and its optimizer after a step; returns both."""
    torch.manual_seed(1)
    model = torch.nn.ModuleDict({name.split(".")[0]: torch.nn.Module() for name in SIZES})
    for name, size in SIZES.items():
        model[name.split(".")[0]].register_parameter("weight", torch.nn.Parameter(torch.randn(size)))
    model.register_buffer("scale", torch.tensor([2.0, 3.0]))
    parameters = list(model.parameters())
    given = [{"params": parameters}] if groups == 1 else [{"params": parameters[:1]}, {"params": parameters[1:], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(given, lr=0.5, betas=(0.8, 0.9))
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape)
    optimizer.step()
    unishard.torch.save(path, model, optimizer, step=1)
    return model, optimizer


class Verl(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="unishard-verl-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.run, self.actor = self.folder / "native", self.folder / "run" / "global_step_1" / "actor"

    def refused(self, code, function, *arguments, **options):
        before = sorted(self.folder.rglob("*"))
        with self.assertRaises(unishard.Error) as caught:
            function(*arguments, **options)
        self.assertEqual(caught.exception.code, code)
        self.assertEqual(sorted(self.folder.rglob("*")), before)
        return str(caught.exception)

    def check(self, folder, model, optimizer):
        with unishard.open(folder) as checkpoint:
            for name, parameter in zip(ORDER, model.parameters()):
                self.assertTrue(torch.equal(checkpoint[name].torch(), parameter.detach()), name)
                for state in ("exp_avg", "exp_avg_sq"):
                    self.assertTrue(torch.equal(checkpoint[name, state].torch(), optimizer.state[parameter][state]), name)
            self.assertTrue(torch.equal(checkpoint["scale"].torch(), model.get_buffer("scale")))
            self.assertEqual(checkpoint.step, 1)
            (group,) = checkpoint.groups
            self.assertEqual((group["lr"], group["betas"], group["params"]), (0.5, [0.8, 0.9], ORDER))

    def test_any_checkpoint_becomes_the_files_of_ranks_and_these_those_of_others(self):
        model, optimizer = training_file(self.run)
        unishard.verl.write(self.run, self.actor, 2, device_type="cuda", order=ORDER)
        self.check(self.actor, model, optimizer)
        (self.folder / "run" / "latest_checkpointed_iteration.txt").write_text("1\n")
        (self.actor.parent / "data.pt").write_bytes(b"the data loader's")
        for ranks in (1, 3, 5):
            out = self.folder / f"out{ranks}"
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(unishard.verl.main([str(self.folder / "run"), str(out), "-w", str(ranks), "--device-type", "cpu"]), 0)
            self.check(out, model, optimizer)
            self.assertEqual((out / "global_step_1" / "data.pt").read_bytes(), b"the data loader's")
            self.assertEqual(len(list((out / "global_step_1" / "actor").glob("*_rank_*.pt"))), 3 * ranks)

    def test_the_mesh_is_that_of_the_given_devices(self):
        training_file(self.run)
        unishard.verl.write(self.run, self.actor, 2, device_type="cuda", order=ORDER)
        state = torch.load(self.actor / "model_world_size_2_rank_1.pt", weights_only=True)
        mesh = state["embed.weight"].device_mesh
        self.assertEqual((mesh.device_type, mesh.mesh_dim_names, mesh.mesh.tolist()), ("cuda", ("fsdp",), [0, 1]))
        self.assertEqual([tuple(state[name].to_local().shape) for name in ORDER], [(3, 4), (2,), (1, 4)])

    def test_what_cannot_be_written_is_refused_and_leaves_nothing(self):
        training_file(self.run)
        self.actor.mkdir(parents=True)
        self.refused("already exists", unishard.verl.write, self.run, self.actor, 2, order=ORDER)
        self.actor.rmdir()
        new = self.folder / "new"
        self.assertIn("nothing tells the order", self.refused("unsupported", unishard.verl.write, self.run, new, 2))
        self.assertIn("head.weight", self.refused("mismatch", unishard.verl.write, self.run, new, 2, order=ORDER[:2]))
        self.refused("not found", unishard.verl.write, self.folder / "nothing", new, 2)
        self.refused("not found", unishard.verl.write_run, self.folder / "run", new, 2)
        training_file(self.folder / "groups", groups=2)
        self.assertIn("2 groups", self.refused("unsupported", unishard.verl.write, self.folder / "groups", new, 2, order=ORDER))

    def test_states_without_names_are_refused(self):
        training_file(self.run)
        unishard.verl.write(self.run, self.actor, 2, order=ORDER)
        os.remove(self.actor / "fsdp_config.json")
        self.refused("unsupported", unishard.verl.write, self.actor, self.folder / "new", 1)


if __name__ == "__main__":
    unittest.main()
