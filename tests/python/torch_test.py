#!/usr/bin/env python3
"""Tests unishard.torch within one process; tests/interop/peers/torch_jobs.py has jobs of several ranks.

    UNISHARD_LIBRARY_DIR=BUILD/bin PYTHONPATH=tools/python torch_test.py
"""
import collections
import copy
import datetime
import functools
import itertools
import shutil
import signal
import struct
import sys
import tempfile
import unittest
import warnings
import zipfile
from pathlib import Path

try:
    import torch
except ImportError:
    sys.exit(77)

import unishard
import unishard.torch

OPTIMIZERS = {
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.1),
    "AMSGrad": functools.partial(torch.optim.Adam, lr=0.1, amsgrad=True),
    "NAdam": functools.partial(torch.optim.NAdam, lr=0.1),
    "dampened SGD": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5),
    "plain SGD": functools.partial(torch.optim.SGD, lr=0.1),
    "Adagrad": functools.partial(torch.optim.Adagrad, lr=0.1),
    "RMSprop": functools.partial(torch.optim.RMSprop, lr=0.1, centered=True, momentum=0.5),
}


class Branches(torch.nn.Module):
    """One of two layers has gradients."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.often, self.rarely = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)

    def forward(self, values, is_rare):
        return self.rarely(values) if is_rare else self.often(values)


def train(model, optimizer, seeds, is_rare=False):
    losses = []
    for seed in seeds:
        values = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
        loss = model(values, is_rare).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def job(seed, make):
    model = Branches(seed)
    return model, make(model.parameters())


def snapshot(model, optimizer):
    return copy.deepcopy((model.state_dict(), optimizer.state_dict(), {id(one): one.grad for one in model.parameters()}))


class Jobs(unittest.TestCase):
    def setUp(self):
        self.enterContext(warnings.catch_warnings()) if hasattr(self, "enterContext") else None
        warnings.simplefilter("ignore")
        self.folder = Path(tempfile.mkdtemp(prefix="unishard-torch-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def save(self, model, optimizer, step):
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        unishard.torch.save(self.folder / "run", model, optimizer, step=step)

    def unchanged(self, before, model, optimizer, what):
        torch.testing.assert_close(snapshot(model, optimizer), before, rtol=0, atol=0, msg=what)

    def test_a_save_changes_nothing(self):
        for (name, make), steps, has_gradients in itertools.product(OPTIMIZERS.items(), (0, 1), (False, True)):
            model, optimizer = job(1, make)
            train(model, optimizer, range(steps))
            if has_gradients:
                model(torch.ones(1, 3), False).sum().backward()
            before = snapshot(model, optimizer)
            self.save(model, optimizer, steps)
            self.unchanged(before, model, optimizer, name)

    def test_a_job_goes_on_whatever_the_loading_one_has_done(self):
        """Parameters that never had a gradient have no state, in the job that saves, in the one that loads, or in both."""
        steps = [(0, 0), (2, 0), (0, 2), (1, 1)]  # of the two branches
        for (name, make), saved, loading in itertools.product(OPTIMIZERS.items(), steps, steps):
            model, optimizer = job(1, make)
            train(model, optimizer, range(saved[0]))
            train(model, optimizer, range(saved[1]), is_rare=True)
            self.save(model, optimizer, sum(saved))
            other, its = job(2, functools.partial(make, lr=0.7))
            train(other, its, range(loading[0]))
            train(other, its, range(loading[1]), is_rare=True)
            with self.subTest(optimizer=name, saved=saved, loading=loading):
                unishard.torch.load(self.folder / "run", other, its)
                torch.testing.assert_close(its.state_dict(), optimizer.state_dict(), rtol=0, atol=0)
                for is_rare in (False, True):
                    self.assertEqual(train(other, its, range(7, 10), is_rare), train(model, optimizer, range(7, 10), is_rare))

    def test_another_optimizer_is_refused_before_anything_changes(self):
        for saved, loading in itertools.permutations(OPTIMIZERS, 2):
            if loading == "plain SGD" or (saved, loading) in (("NAdam", "AdamW"), ("RMSprop", "dampened SGD")):
                continue  # it finds all that it needs
            if {saved, loading} in ({"AdamW", "AMSGrad"}, {"plain SGD", "dampened SGD"}):
                continue  # the settings of the checkpoint decide
            model, optimizer = job(1, OPTIMIZERS[saved])
            train(model, optimizer, range(2))
            self.save(model, optimizer, 2)
            for steps in (0, 1):
                other, its = job(2, OPTIMIZERS[loading])
                train(other, its, range(steps))
                before = snapshot(other, its)
                with self.assertRaises(unishard.Error, msg=f"{saved} into {loading}") as caught:
                    unishard.torch.load(self.folder / "run", other, its)
                self.assertEqual(caught.exception.code, "mismatch")
                self.unchanged(before, other, its, f"{saved} into {loading}")

    def test_settings_decide_which_states_there_are(self):
        for saved, loading in (("AdamW", "AMSGrad"), ("AMSGrad", "AdamW"), ("plain SGD", "dampened SGD"), ("dampened SGD", "plain SGD")):
            model, optimizer = job(1, OPTIMIZERS[saved])
            train(model, optimizer, range(2))
            self.save(model, optimizer, 2)
            for steps in (0, 1):
                other, its = job(2, OPTIMIZERS[loading])
                train(other, its, range(steps))
                with self.subTest(saved=saved, loading=loading, steps=steps):
                    unishard.torch.load(self.folder / "run", other, its)
                    self.assertEqual(train(other, its, range(7, 10)), train(*copy.deepcopy((model, optimizer)), range(7, 10)))

    def test_an_optimizer_of_another_model_is_refused(self):
        model, _ = job(1, OPTIMIZERS["AdamW"])
        _, optimizer = job(1, OPTIMIZERS["AdamW"])
        with self.assertRaisesRegex(unishard.Error, "has a parameter of size .4, 3. that is not the model's"):
            self.save(model, optimizer, 0)

    def test_states_of_one_element_are_the_tensors_of_a_torch_file(self):
        model = Branches(0)
        optimizer = torch.optim.NAdam(model.parameters(), lr=0.1)
        train(model, optimizer, range(3))
        train(model, optimizer, range(2), is_rare=True)
        unishard.torch.save(self.folder / "run", model, optimizer, step=5)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, self.folder / "file.pt")
        self.assertEqual(unishard.open(self.folder / "run")["often.weight", "mu_product"].torch(),
                         optimizer.state[model.often.weight]["mu_product"])
        unishard.convert(self.folder / "file.pt", self.folder / "made", to="native", assume_model_order=True)
        self.assertTrue(unishard.diff(self.folder / "run", self.folder / "made")["equal"])
        other = Branches(1)
        fresh = torch.optim.NAdam(other.parameters(), lr=0.1)
        unishard.torch.load(self.folder / "made", other, fresh)
        self.assertEqual(train(other, fresh, [9]), train(model, optimizer, [9]))

    def test_files_number_parameters_in_the_optimizers_order(self):
        model = torch.nn.Sequential(torch.nn.LayerNorm(3), torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
        order = [model[2].bias, model[0].weight, model[1].weight, model[2].weight, model[0].bias, model[1].bias]
        optimizer = torch.optim.AdamW(order, lr=0.1)
        model(torch.randn(4, 3, generator=torch.Generator().manual_seed(1))).square().mean().backward()
        optimizer.step()
        unishard.torch.save(self.folder / "run", model, optimizer, step=1)
        # safetensors sorts names: the order must not depend on that of the tensors.
        for between in (None, "safetensors", "trainer", "dcp", "deepspeed"):
            source = self.folder / "run"
            if between is not None:
                source = self.folder / f"between_{between}"
                unishard.convert(self.folder / "run", source, to=between)
            for to, file in (("torch", "."), ("trainer", "optimizer.pt"), ("accelerate", "optimizer.bin")):
                with self.subTest(between=between, to=to):
                    result = self.folder / f"{between}_{to}{'.pt' if to == 'torch' else ''}"
                    unishard.convert(source, result, to=to)
                    states = torch.load(result / file if file != "." else result, weights_only=False)
                    states = states["optimizer"] if to == "torch" else states
                    if isinstance(next(iter(states["state"])), str):  # by name
                        states["state"] = {number: states["state"][name] for number, name in enumerate(states["param_groups"][0]["params"])}
                        states["param_groups"][0]["params"] = list(range(len(order)))
                    fresh = torch.optim.AdamW(order, lr=0.1)
                    fresh.load_state_dict({"state": states["state"], "param_groups": states["param_groups"]})
                    for parameter in order:
                        self.assertTrue(torch.equal(fresh.state[parameter]["exp_avg"], optimizer.state[parameter]["exp_avg"]))

    def test_numbered_states_of_another_order_are_refused(self):
        for odd in (False, True):  # with another shape no order of the model fits, and the states have no names
            def model():
                torch.manual_seed(1)
                layers = [torch.nn.Linear(3, 3, bias=False) for _ in range(3)]
                return torch.nn.Sequential(*layers, *([torch.nn.Linear(3, 1, bias=False)] if odd else []))
            def reversed_(one):
                return torch.optim.SGD(list(one.parameters())[::-1], lr=0.1, momentum=0.9)
            first = model()
            optimizer = reversed_(first)
            first(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, self.folder / "file.pt")
            second = model()
            with self.subTest(odd=odd), self.assertRaises(unishard.Error) as caught:
                unishard.torch.load(self.folder / "file.pt", second, reversed_(second))
            self.assertEqual(caught.exception.code, "mismatch")

    def test_parameters_of_two_types_have_masters_in_deepspeed(self):
        layers = torch.nn.Sequential(torch.nn.Linear(3, 3).bfloat16(), torch.nn.LayerNorm(3))
        optimizer = torch.optim.AdamW(layers.parameters(), lr=0.1)
        for parameter in layers.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        unishard.torch.save(self.folder / "run", layers, optimizer, step=1)
        torch.save({"model": layers.state_dict(), "optimizer": optimizer.state_dict()}, self.folder / "file.pt")
        for source, stage in itertools.product(("run", "file.pt"), range(4)):
            with self.subTest(source=source, stage=stage):
                result = self.folder / f"deepspeed-{source}-{stage}"
                unishard.convert(self.folder / source, result, to="deepspeed", stage=stage, world_size=2, assume_model_order=source == "file.pt")
                with unishard.open(result) as read:
                    for name, parameter in layers.named_parameters():
                        self.assertFalse(read[name, "fp32"].frozen)
                        self.assertTrue(torch.equal(read[name, "fp32"].torch(), parameter.detach().float()))
                        for state in ("exp_avg", "exp_avg_sq"):
                            self.assertTrue(torch.equal(read[name, state].torch().float(), optimizer.state[parameter][state].float()))

    def test_states_that_the_optimizer_has_no_place_for_are_refused(self):
        model, optimizer = job(1, OPTIMIZERS["AdamW"])
        train(model, optimizer, [1])
        unishard.torch.save(self.folder / "run", model, optimizer, step=1)
        others = {"plain SGD": OPTIMIZERS["plain SGD"](model.parameters()), "a part": OPTIMIZERS["AdamW"](model.often.parameters())}
        train(model, optimizer, [2], is_rare=True)
        unishard.torch.save(self.folder / "run", model, optimizer, step=2)
        for name, other in others.items():
            with self.subTest(name), self.assertRaisesRegex(unishard.Error, "is in the checkpoint, and this optimizer has no such state"):
                unishard.torch.load(self.folder / "run", model, other)
            unishard.torch.load(self.folder / "run", model, other, strict=False)
        with self.assertRaises(unishard.Error) as caught:
            unishard.torch.load(self.folder / "run", model, torch.optim.Adafactor(model.parameters()))
        self.assertEqual(caught.exception.code, "mismatch")

    def test_parameters_that_no_group_had_are_refused(self):
        model, _ = job(1, OPTIMIZERS["AdamW"])
        optimizer = OPTIMIZERS["AdamW"](model.often.parameters())
        train(model, optimizer, [1])
        unishard.torch.save(self.folder / "run", model, optimizer, step=1)
        more = OPTIMIZERS["AdamW"]([{"params": list(model.often.parameters())}, {"params": list(model.rarely.parameters())}])
        with self.assertRaisesRegex(unishard.Error, "rarely.weight is in no parameter group of the checkpoint"):
            unishard.torch.load(self.folder / "run", model, more)
        unishard.torch.load(self.folder / "run", model, more, strict=False)
        self.assertEqual(len(more.state), 2)

    def test_damage_of_an_archive_is_found_by_a_load(self):
        model, optimizer = job(1, OPTIMIZERS["AdamW"])
        train(model, optimizer, [1])
        train(model, optimizer, [2], is_rare=True)
        unishard.torch.save(self.folder / "run", model, optimizer, step=1)
        unishard.convert(self.folder / "run", self.folder / "deepspeed", to="deepspeed", stage=2, world_size=3)
        # The partitions of the last rank end with padding, which no parameter needs.
        for file in sorted((self.folder / "deepspeed").rglob("*_optim_states.pt")):
            whole = file.read_bytes()
            for entry in zipfile.ZipFile(file).infolist():
                name, extra = struct.unpack_from("<HH", whole, entry.header_offset + 26)
                if "/data/" not in entry.filename or entry.file_size < 32:
                    continue
                damaged = bytearray(whole)
                damaged[entry.header_offset + 30 + name + extra] ^= 1
                file.write_bytes(damaged)
                with self.subTest(file=file.name, entry=entry.filename), self.assertRaises(unishard.Error) as caught:
                    unishard.torch.load(self.folder / "deepspeed", model, optimizer)
                self.assertEqual(caught.exception.code, "corrupt")
            file.write_bytes(whole)
        unishard.torch.load(self.folder / "deepspeed", model, optimizer)

    def test_a_refused_load_changes_no_half_precision_weights(self):
        def half(seed):
            model = Branches(seed).half()
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            return model, OPTIMIZERS["AdamW"](model.parameters())
        model, optimizer = half(1)
        optimizer.step()
        unishard.torch.save(self.folder / "run", model.float(), optimizer, step=1)
        other, fresh = half(2)
        before = copy.deepcopy(other.state_dict())
        with self.assertRaises(unishard.Error):
            unishard.torch.load(self.folder / "run", other, fresh)
        for name, value in other.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)

    def test_settings_of_a_group_without_parameters_come_back(self):
        def groups(rate):
            model = Branches(0)
            return model, torch.optim.AdamW([{"params": []}, {"params": list(model.parameters())}], lr=rate)
        model, optimizer = groups(0.1)
        unishard.torch.save(self.folder / "run", model, optimizer, step=1)
        other, fresh = groups(0.2)
        unishard.torch.load(self.folder / "run", other, fresh)
        self.assertEqual([group["lr"] for group in fresh.param_groups], [0.1, 0.1])

    def test_a_schedule_goes_on_at_a_later_step(self):
        def rates(model, optimizer, last):
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step), last_epoch=last)
            train(model, optimizer, [1])
            schedule.step()
            return schedule.get_last_lr()
        model, optimizer = job(1, OPTIMIZERS["AdamW"])
        rates(model, optimizer, -1)
        unishard.torch.save(self.folder / "run", model, optimizer, step=1)
        other, fresh = job(2, OPTIMIZERS["AdamW"])
        unishard.torch.load(self.folder / "run", other, fresh)
        self.assertEqual(rates(other, fresh, 0), [0.1 / 3])

    def test_an_optimizer_that_is_not_understood_freezes_nothing(self):
        model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2, bias=False) for name in ("g1", "g2", "d")})
        optimizers = [torch.optim.AdamW([model["g2"].weight], lr=0.1), torch.optim.SGD([model["d"].weight], lr=0.1, momentum=0.9)]
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        for optimizer in optimizers:
            optimizer.step()
        torch.save({"state_dict": model.state_dict(), "optimizer_states": [one.state_dict() for one in optimizers]}, self.folder / "gan.pt")
        with unishard.open(self.folder / "gan.pt") as checkpoint:
            self.assertEqual([one.name for one in checkpoint.tensors.values() if one.frozen], [])

    def test_a_module_with_the_name_of_a_wrappers_is_refused(self):
        model = torch.nn.Module()
        model._orig_mod, model.layer = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        with self.assertRaisesRegex(unishard.Error, "weight: get_model_state_dict.. has no such name") as caught:
            unishard.torch.save(self.folder / "run", model, optimizer, step=1)
        self.assertEqual(caught.exception.code, "unsupported")

    def test_an_interrupted_save_ends_its_threads_and_leaves_nothing(self):
        def interrupt(number, frame):
            raise KeyboardInterrupt
        model = torch.nn.Sequential(*[torch.nn.Linear(400, 400) for _ in range(4)])
        before = signal.signal(signal.SIGALRM, interrupt)
        interrupted = 0
        unishard.torch.save(self.folder / "run", model, step=0)  # torch loads modules of its own
        try:
            for number in range(1, 25):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.001 * number)
                    unishard.torch.save(self.folder / "run", model, step=number, keep_last=1)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        self.assertGreater(interrupted, 0)
        unishard.torch.save(self.folder / "run", model, step=100, keep_last=1)
        self.assertEqual({one.name for one in (self.folder / "run").iterdir()} - {".training-lock"}, {"latest", "global_step100"})

    def test_the_client_state_keeps_its_types(self):
        values = {"tuple": (1, 2), "numbers": {7: "seven", 1.5: None}, "nan": float("nan"), "set": {1}, "path": Path("a/b"), "bytes": b"x",
                  "half": "a\ud800", "ordered": collections.OrderedDict(b=1, a=2), "when": datetime.date(2026, 1, 2)}
        model, _ = job(1, OPTIMIZERS["AdamW"])
        unishard.torch.save(self.folder / "run", model, step=1, client_state=values)
        loaded = unishard.torch.load(self.folder / "run", model).client_state
        self.assertEqual(repr(loaded), repr(values))
        for wrong, text in (({"x": {"y": object()}}, "client_state.x.y is a builtins.object"), ({7: 1}, "client_state has the key 7"),
                            ({"x": torch.ones(2)}, "client_state.x is a tensor")):
            with self.assertRaisesRegex(unishard.Error, text):
                unishard.torch.save(self.folder / "run", model, step=2, client_state=wrong)

    def test_an_optimizer_that_has_done_nothing_comes_back(self):
        model, optimizer = job(1, OPTIMIZERS["AdamW"])
        unishard.torch.save(self.folder / "run", model, optimizer, step=1)
        unishard.torch.load(self.folder / "run", model, optimizer)
        self.assertEqual(optimizer.state_dict()["state"], {})

    def test_weights_alone_are_no_optimizer(self):
        model, optimizer = job(1, OPTIMIZERS["AdamW"])
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        unishard.torch.save(self.folder / "run", model, step=0)
        with self.assertRaisesRegex(unishard.Error, "often.weight .exp_avg. is not in the checkpoint"):
            unishard.torch.load(self.folder / "run", model, optimizer)
        self.assertEqual(optimizer.state_dict()["state"], {})


if __name__ == "__main__":
    unittest.main()
