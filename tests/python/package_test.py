#!/usr/bin/env python3
"""Tests the Python package against golden checkpoints, against other formats made of them, and against damage.

    UNISHARD_LIBRARY_DIR=BUILD/bin PYTHONPATH=tools/python package_test.py
"""
import concurrent.futures
import importlib.util
import itertools
import json
import math
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import threading
import unittest
import unittest.mock
from pathlib import Path
from unittest import mock

import numpy as np

import unishard
from unishard import _native, _slices
from unishard._shards import Box, own_share, part_of, run_elements, runs

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
SETS = ("v1", "v1-zstd", "v1-shared", "v1-boxes")


def crc64(data):
    """CRC-64/XZ, bit by bit: independent of the library's."""
    crc = 0xFFFFFFFFFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xC96C5795D7870F42 if crc & 1 else 0)
    return f"{crc ^ 0xFFFFFFFFFFFFFFFF:016x}"


def random_index(shape):
    index = []
    for size in shape:
        if size and random.random() < 0.3:
            index.append(random.randrange(-size, size))
        else:
            begin, end = (random.choice([None, *range(-size - 1, size + 2)]) for _ in range(2))
            index.append(slice(begin, end, random.choice([None, 1, 2, 3, -1, -2])))
    begin, end = sorted(random.randint(0, len(shape)) for _ in range(2))
    index[begin:end] = [...]
    return tuple(index[:-1] if index[-1] is ... and random.random() < 0.5 else index)


class Reading(unittest.TestCase):
    def test_every_tensor_has_the_recorded_checksum(self):
        for name in SETS:
            with unishard.open(GOLDEN / name) as checkpoint:
                self.assertGreater(len(checkpoint.tensors), 20)
                for tensor in checkpoint.tensors.values():
                    values = tensor.bits()
                    self.assertEqual(values.shape, tensor.shape)
                    self.assertEqual(values.nbytes, tensor.nbytes)
                    if values.nbytes <= 8192:  # this crc is slow
                        self.assertEqual(crc64(values.tobytes()), tensor.crc64, tensor)

    def test_indices_mean_what_they_mean_in_numpy(self):
        random.seed(7)
        checkpoint = unishard.open(GOLDEN / "v1-zstd")
        tensors = [one for one in checkpoint.tensors.values() if one.size]
        whole = {tensor: tensor.bits() for tensor in tensors}
        for span, gap in ((_slices._SPAN_BYTES, _slices._GAP_BYTES), (64, 1 << 20), (64, 32), (1, 1)):  # large tensors are read in parts
            with mock.patch.multiple(_slices, _SPAN_BYTES=span, _GAP_BYTES=gap):
                for _ in range(1000):
                    tensor = random.choice(tensors)
                    index = random_index(tensor.shape)
                    values, expected = tensor.bits(index), whole[tensor][index]
                    self.assertEqual(values.shape, expected.shape, (tensor, index))
                    self.assertEqual(values.tobytes(), expected.tobytes(), (tensor, index))
                    self.assertTrue(values.flags.c_contiguous)

    def test_a_slice_of_a_large_tensor_reads_and_holds_little(self):
        shape, row = (1 << 20, 1 << 14), 4 << 14  # 64 GiB
        mib = 1 << 20
        for index, total, largest in ((slice(100, 110), 10 * row, 10 * row), (slice(None, None, 1 << 17), 8 * row, row),
                                      (slice(None, None, -(1 << 17)), 8 * row, row), ((slice(None), 7), 4 * mib, 4 * mib),
                                      ((slice(None, None, 2), 0), 4 * mib, 4 * mib), ((slice(0, 64, 2), ...), 64 * row, 64 * row),
                                      ((slice(0, 4096, 3), ...), 4096 * row, 32 * mib),
                                      ((slice(0, 4096), slice(None, None, 8192)), 4096 * 8193 * 4, 32 * mib)):
            reads = []
            _slices.read(index, shape, np.float32, lambda offsets, sizes, address: reads.append(4 * math.prod(sizes)))
            self.assertLessEqual(sum(reads), total, index)
            self.assertGreater(sum(reads), 0.9 * total, index)
            self.assertLessEqual(max(reads), largest, index)

    def test_a_checkpoint_is_pickled_as_what_opens_it_again(self):
        with tempfile.TemporaryDirectory() as made:
            run = Path(made) / "run"
            shutil.copytree(GOLDEN / "v1", run)
            with unishard.open(run) as checkpoint:
                pickled = pickle.dumps([checkpoint, checkpoint["wte.weight"]])
                again, tensor = pickle.loads(pickled)
                self.assertEqual((again.step, again.tag, again.identity), (checkpoint.step, checkpoint.tag, checkpoint.identity))
                self.assertEqual(tensor[3:5].tobytes(), checkpoint["wte.weight"][3:5].tobytes())
            read = "import pickle, sys; print(float(pickle.load(sys.stdin.buffer)[1][0, 0]))"
            there = subprocess.run([sys.executable, "-c", read], input=pickled, capture_output=True, check=True, cwd="/")
            self.assertEqual(float(there.stdout), float(tensor[0, 0]))
            (run / "latest").write_text("gone")
            shutil.rmtree(run / "global_step7")
            with self.assertRaises(unishard.Error):
                pickle.loads(pickled)

    def test_keys_and_flags_of_another_kind(self):
        checkpoint = unishard.open(GOLDEN / "v1")
        for key in (5, None, ("wte.weight",), ["wte.weight", "fp32"]):
            with self.assertRaisesRegex(TypeError, "by its name or by .name, state."):
                checkpoint[key]
        for flag in ("help", "json"):
            with self.assertRaisesRegex(TypeError, f"takes no {flag}"):
                unishard.inspect(GOLDEN / "v1", **{flag: True})

    def test_wrong_indices(self):
        tensor = unishard.open(GOLDEN / "v1")["wte.weight"]
        rows, columns = tensor.shape
        for index in (rows, -rows - 1, (0, columns), (0, 0, 0), (..., ...)):
            with self.assertRaises(IndexError, msg=str(index)):
                tensor[index]
        for index in ("a", 1.5, True, [1, 2], None, np.array([1])[:0]):
            with self.assertRaises(TypeError, msg=str(index)):
                tensor[index]
        self.assertEqual(tensor[10:5].shape, (0, columns))

    def test_names_states_and_aliases(self):
        checkpoint = unishard.open(GOLDEN / "v1")
        self.assertEqual((checkpoint.format, checkpoint.tag, checkpoint.step, checkpoint.world_size, checkpoint.stage),
                         ("native", "global_step7", 7, 2, 2))
        self.assertEqual(checkpoint.identity, "155daf7beb4d0a3f")
        self.assertEqual(list(checkpoint), checkpoint.names())
        self.assertEqual(checkpoint["wte.weight"].state, "fp32")
        self.assertEqual(checkpoint["lm_head.weight"], checkpoint["wte.weight"])
        self.assertEqual(checkpoint["lm_head.weight", "exp_avg"], checkpoint["wte.weight", "exp_avg"])
        self.assertIn("lm_head.weight", checkpoint)
        self.assertIn(("wte.weight", "exp_avg"), checkpoint)
        self.assertNotIn(("wte.weight", "momentum"), checkpoint)
        self.assertIn("exp_avg_sq", checkpoint.states("wte.weight"))
        with self.assertRaisesRegex(KeyError, "do you mean wte.weight"):
            checkpoint["wte.weigh"]
        with self.assertRaisesRegex(KeyError, "its states are fp32"):
            checkpoint["wte.weight", "momentum"]

    def test_16_bit_weights(self):
        tensor = unishard.open(GOLDEN / "v1")["wte.weight", "weights"]
        self.assertEqual((tensor.dtype, tensor.derived, tensor.bits().dtype), ("bfloat16", True, np.dtype(np.uint16)))
        try:
            import ml_dtypes
            self.assertEqual(tensor.numpy().dtype, np.dtype(ml_dtypes.bfloat16))
        except ImportError:
            with self.assertRaisesRegex(TypeError, "wte.weight .weights. has the dtype bfloat16"):
                tensor.numpy()

    def test_torch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        for tensor in unishard.open(GOLDEN / "v1").tensors.values():
            values = tensor.torch()
            self.assertEqual(str(values.dtype), "torch." + tensor.dtype)
            self.assertEqual(tuple(values.shape), tensor.shape)
            self.assertEqual(bytes(values.contiguous().view(-1).view(torch.uint8).tolist()), tensor.bits().tobytes())
        self.assertEqual(tensor.torch(slice(None, None, -1)).shape, tensor.shape)

    def test_many_threads_read_and_one_closes(self):
        checkpoint = unishard.open(GOLDEN / "v1-zstd")
        tensors = list(checkpoint.tensors.values())
        expected = [tensor.bits().tobytes() for tensor in tensors]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for _ in range(5):
                self.assertEqual(list(pool.map(lambda tensor: tensor.bits().tobytes(), tensors)), expected)
            reads = [pool.submit(tensors[i % len(tensors)].bits) for i in range(2000)]
            checkpoint.close()
            for i, read in enumerate(reads):
                try:
                    self.assertEqual(read.result().tobytes(), expected[i % len(tensors)])
                except ValueError as error:
                    self.assertIn("closed", str(error))
        with self.assertRaisesRegex(ValueError, "is closed"):
            tensors[0].bits()
        checkpoint.close()


class Shards(unittest.TestCase):
    def test_the_ranks_write_every_element_once(self):
        random.seed(11)
        for _ in range(300):
            shape = tuple(random.choice([1, 2, 3, 5, 40, 300]) for _ in range(random.randint(0, 3)))
            cuts = [sorted({0, size, *(random.randint(0, size) for _ in range(random.randint(0, 2)))}) for size in shape]
            boxes = [Box(tuple(low for low, _ in sides), tuple(high - low for low, high in sides))
                     for sides in itertools.product(*(list(zip(cut, cut[1:])) for cut in cuts))]
            count, number = random.randint(1, 5), random.randint(0, 9)
            written = np.zeros(shape, dtype=np.int64).reshape(-1)
            numbers = np.arange(written.size).reshape(shape)
            for box in boxes:
                inside = numbers[tuple(slice(low, low + size) for low, size in zip(box.offset, box.sizes))].reshape(-1)
                ranges = list(runs(box, shape))
                self.assertEqual([one for low, high in ranges for one in range(low, high)], inside.tolist())
                self.assertTrue(all(high < low for (_, high), (low, _) in zip(ranges, ranges[1:])), "neighbours are two ranges")
                for rank in range(count):
                    low, high = own_share(box, shape, list(range(count)), rank, number)
                    written[inside[low:high]] += 1
                    if low < high and run_elements(box, shape) < box.elements:
                        part = part_of(box, low, high)
                        sides = tuple(slice(first, first + size) for first, size in zip(part.offset, part.sizes))
                        self.assertEqual(numbers[sides].reshape(-1).tolist(), inside[low:high].tolist())
            self.assertTrue((written == 1).all(), (shape, boxes))


class Boxes(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.values = {name: np.arange(math.prod(shape), dtype=np.float32).reshape(shape) + number
                       for number, (name, shape) in enumerate({"w": (12, 10), "e": (3, 4, 6)}.items())}

    def save(self, tag, ranks):
        """Saves the values; ranks: for each rank what it writes, as (name, slices or a range)."""
        catalog = {"tensors": [{"name": name, "state": "weights", "dtype": "float32", "shape": list(value.shape)}
                               for name, value in self.values.items()], "step": 1, "world_size": len(ranks)}
        save = _native.Save(os.fspath(self.folder), tag, catalog, {})
        try:
            save.publish([self.written(save.place, catalog, rank, parts) for rank, parts in enumerate(ranks)])
        finally:
            save.close()
        return unishard.open(self.folder, tag=tag)

    def written(self, place, catalog, rank, parts):
        """Writes one rank's file; returns its entry."""
        names, fragments, data = list(self.values), [], []
        for name, where in parts:
            whole = self.values[name]
            if isinstance(where, range):
                fragments.append((names.index(name), where.start, where.stop))
                data.append(whole.reshape(-1)[where.start:where.stop].copy())
            else:
                data.append(whole[where].copy())
                fragments.append((names.index(name), [side.start for side in where], list(data[-1].shape)))
        shard = _native.Shard(place, catalog, rank, fragments, {})
        try:
            for number, (fragment, values) in enumerate(zip(fragments, data)):
                begin, end = _native.written_elements(fragment)
                middle = (begin + end) // 2  # in two pieces, the second one first
                address = values.ctypes.data
                shard.write(number, middle, end, address + (middle - begin) * 4, (end - middle) * 4)
                shard.write(number, begin, middle, address, (middle - begin) * 4)
            return shard.finish()
        finally:
            shard.close()

    def boxed(self):
        return self.save("boxes", [
            [("w", np.s_[0:12, 0:7]), ("e", np.s_[0:3, 0:2, 0:6])],
            [("w", np.s_[0:8, 7:10]), ("w", np.s_[8:12, 7:10]), ("e", np.s_[0:3, 2:4, 0:3]), ("e", np.s_[0:3, 2:4, 3:6])]])

    def test_they_hold_the_same_state_as_ranges(self):
        with self.boxed() as boxes, self.save("ranges", [[("w", range(0, 120)), ("e", range(0, 72))]]) as ranges:
            self.assertEqual(boxes.identity, ranges.identity)
            for name, value in self.values.items():
                np.testing.assert_array_equal(boxes[name].numpy(), value)
                self.assertEqual(boxes[name].crc64, crc64(value.tobytes()))
        self.assertTrue(unishard.verify(self.folder / "boxes", deep=True)["ok"])
        self.assertTrue(unishard.diff(self.folder / "boxes", self.folder / "ranges")["equal"])

    def test_any_box_is_read_from_any_layout(self):
        random.seed(5)
        with self.boxed() as boxes, self.save("ranges", [[("w", range(0, 120)), ("e", range(0, 72))]]) as ranges:
            unishard.convert(self.folder / "boxes", self.folder / "w.safetensors")
            with unishard.open(self.folder / "w.safetensors") as foreign:
                for _ in range(100):
                    name, value = random.choice(list(self.values.items()))
                    offsets = [random.randrange(size) for size in value.shape]
                    sizes = [random.randint(1, size - low) for low, size in zip(offsets, value.shape)]
                    expected = value[tuple(slice(low, low + size) for low, size in zip(offsets, sizes))]
                    for checkpoint in (boxes, ranges, foreign):
                        read = np.empty(sizes, dtype=np.float32)
                        checkpoint[name]._read_box_into(offsets, sizes, read.ctypes.data)
                        np.testing.assert_array_equal(read, expected)

    def test_the_layout_names_the_boxes(self):
        self.boxed().close()
        layout = unishard.inspect(self.folder / "boxes", layout=True)["tensors"][0]["layout"]
        self.assertEqual([(one["rank"], one.get("offsets"), one.get("sizes")) for one in layout],
                         [(0, [0, 0], [12, 7]), (1, [0, 7], [8, 3]), (1, [8, 7], [4, 3])])

    def test_any_world_size_follows(self):
        with self.boxed() as boxes:
            unishard.reshard(self.folder / "boxes", self.folder / "three", world_size=3, stage=2)
            with unishard.open(self.folder / "three") as three:
                self.assertEqual(three.identity, boxes.identity)

    def test_overlaps_and_holes_are_refused(self):
        for part in (np.s_[0:12, 6:10], np.s_[0:12, 8:10]):
            with self.assertRaisesRegex(unishard.Error, "do not hold each element once"):
                self.save("bad", [[("w", np.s_[0:12, 0:7]), ("w", part), ("e", range(0, 72))]])
        with self.assertRaisesRegex(unishard.Error, "axis 1, which has 10"):
            catalog = {"tensors": [{"name": "w", "state": "weights", "dtype": "float32", "shape": [12, 10]}], "step": 1, "world_size": 1}
            _native.Shard({"folder": os.fspath(self.folder), "staging": ".", "save_id": "0" * 32}, catalog, 0, [(0, [0, 4], [12, 7])], {})


class Objects(unittest.TestCase):
    def setUp(self):
        if importlib.util.find_spec("torch") is None:
            self.skipTest("torch is not installed")

    def test_values_are_described_as_the_library_describes_their_pickles(self):
        import torch
        from unishard._objects import from_json, to_json
        import argparse, collections, datetime, decimal, fractions  # noqa: E401
        values = {
            "plain": [None, True, -5, 1.5, "text", {"a": []}], "large": [2**63, -2**70], "odd": [float("nan"), float("-inf"), "\ud800"],
            "bytes": [b"\0\xff", bytearray(b"a")], "nested": ((1, (2,)), {3}, frozenset([4]), 1 - 2j), "keys": {1: "a", (2, None): "b"},
            "dollar": {"$a": 1}, "ordered": collections.OrderedDict(b=1, a=2),
            "counts": collections.Counter("aab"), "lists": collections.defaultdict(list, a=[1]), "none": collections.defaultdict(None, a=1),
            "path": Path("a/b"),
            "torch": [torch.Size([2, 3]), torch.bfloat16, torch.device("cuda:1")],
            "times": [datetime.datetime(2024, 1, 2, 3, 4, 5, 6), datetime.timedelta(3), datetime.date(2024, 1, 2), datetime.timezone.utc],
            "numbers": [decimal.Decimal("1.50"), fractions.Fraction(1, 3), range(3), slice(1, None)],
            "arguments": argparse.Namespace(lr=1e-3, betas=(0.9, 0.95)), "numpy": [np.float32(1.5), np.int64(-3), np.bool_(True)],
            "arrays": [np.arange(6, dtype=np.uint32).reshape(2, 3), np.array(["a", "bc"]), np.asfortranarray(np.ones((2, 3))), np.array(7)]}
        with tempfile.TemporaryDirectory() as folder:
            counts = {"global_steps": 1, "skipped_steps": 0, "dp_world_size": 1, "mp_world_size": 1}
            torch.save({"module": {"w": torch.ones(2)}, **counts, **values}, Path(folder) / "mp_rank_00_model_states.pt")
            with unishard.open(folder) as checkpoint:  # a DeepSpeed folder
                content = checkpoint.client_state
        for key, value in values.items():
            described = to_json(value, key, None)
            self.assertEqual(json.loads(json.dumps(described)), content[key], key)
            again = from_json(described, None)
            self.assertEqual(repr(again), repr(value))
            self.assertIs(type(again), type(value))

    def test_what_is_no_plain_data_is_refused(self):
        from unishard._objects import from_json, to_json
        loop = []
        loop.append(loop)
        for value in (object(), print, loop, np.array([object()], dtype=object), np.zeros(1, dtype=[("a", "i4")])):
            with self.assertRaises(unishard.Error):
                to_json(value, "value", None)
        for hostile in ({"$type": "object", "name": "os.system", "args": ["false"]}, {"$type": "global", "name": "os.system"}):
            self.assertEqual(from_json(hostile, None), hostile)
        for damaged in ({"$type": "bytes", "hex": "0"}, {"$type": "torch.dtype", "value": "load"}, {"$type": "complex", "value": []},
                        {"$type": "object", "name": "numpy.dtype", "args": ["O"]}, {"$type": "tuple"}, {"$tensor": 5},
                        {"$type": "object", "name": "datetime.date", "args": [1]}):
            with self.assertRaises(unishard.Error):
                from_json(damaged, {}.__getitem__)


class Errors(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="unishard-python-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def test_nothing_there(self):
        with self.assertRaises(unishard.Error) as caught:
            unishard.open(self.folder / "nothing")
        self.assertEqual(caught.exception.code, "not found")
        with self.assertRaises(unishard.Error) as caught:
            unishard.open(GOLDEN / "v1", tag="global_step9")
        self.assertIn("global_step7", str(caught.exception))
        for path in ("", "a\0b"):
            with self.assertRaises((unishard.Error, ValueError)):
                unishard.open(path)

    def test_a_damaged_byte_names_the_tensor(self):
        shutil.copytree(GOLDEN / "v1", self.folder / "run")
        shard = self.folder / "run" / "global_step7" / "shard-00000-of-00002.h5"
        wanted = unishard.open(GOLDEN / "v1")["wte.weight"].bits(slice(0, 4)).tobytes()
        content = bytearray(shard.read_bytes())
        content[content.index(wanted) + 5] ^= 1
        shard.write_bytes(content)
        with unishard.open(self.folder / "run") as checkpoint, self.assertRaises(unishard.Error) as caught:
            checkpoint["wte.weight"].numpy()
        error = caught.exception
        self.assertEqual((error.code, error.tensor), ("corrupt", ("wte.weight", "fp32")))
        self.assertIn(str(shard), error.message)
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((again.code, again.message, again.hint, again.tensor), (error.code, error.message, error.hint, error.tensor))
        self.assertFalse(unishard.verify(self.folder / "run", deep=True)["ok"])


class Verbs(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="unishard-python-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def test_every_format_reads_alike(self):
        with unishard.open(GOLDEN / "v1") as checkpoint:
            masters = {name: checkpoint[name].bits().tobytes() for name in checkpoint.names() if "fp32" in checkpoint.states(name)}
        for to in ("native", "deepspeed", "deepspeed-universal", "dcp", "torch", "hdf5", "npz"):
            made = self.folder / (to + {"torch": ".pt", "hdf5": ".h5", "npz": ".npz"}.get(to, ""))
            unishard.convert(GOLDEN / "v1", made, to=to)
            with unishard.open(made) as checkpoint:
                self.assertEqual(checkpoint.format, to)
                for name, content in masters.items():
                    self.assertEqual(checkpoint[name].bits().tobytes(), content, (to, name))
        made = self.folder / "model.safetensors"
        unishard.zero_to_fp32(GOLDEN / "v1", made)
        with unishard.open(made) as checkpoint:
            self.assertEqual({name: checkpoint[name].bits().tobytes() for name in masters}, masters)

    def test_reshard_diff_inspect_prune(self):
        run = self.folder / "run"
        report = unishard.reshard(GOLDEN / "v1", run, world_size=5, stage=3, compress="zstd")
        self.assertIsInstance(report, dict)
        described = unishard.inspect(run)
        self.assertEqual((described["world_size"], described["stage"], described["identity"]), (5, 3, "155daf7beb4d0a3f"))
        unishard.diff(GOLDEN / "v1", run)
        self.assertEqual(unishard.diff(GOLDEN / "v1", run, states=["fp32", "exp_avg"])["equal"], True)
        self.assertEqual(unishard.diff(GOLDEN / "v1", GOLDEN / "v1-shared")["equal"], False)
        self.assertEqual(unishard.prune(run, keep_last=1)["removed"], [])

    def test_report_writes_a_page_and_a_notebook_shows_a_table(self):
        page = self.folder / "page.html"
        summary = unishard.report(GOLDEN / "v1", GOLDEN / "v1-shared", output=page)
        self.assertTrue(summary["ok"])
        self.assertGreater(summary["compared"]["different"], 0)
        self.assertEqual(page.stat().st_size, summary["page_bytes"])
        with unishard.open(GOLDEN / "v1") as checkpoint:
            table = checkpoint._repr_html_()
        for words in ("step 7", "exp_avg_sq", "float32", "identity 155daf7beb4d0a3f"):
            self.assertIn(words, table)

    def test_a_notebook_shows_hostile_names_as_text(self):
        folder = self.folder / "<img src=x onerror=alert(1)>\u202e"
        shutil.copytree(GOLDEN / "v1", folder)
        with unishard.open(folder) as checkpoint:
            table = checkpoint._repr_html_()
        self.assertNotIn("<img", table)
        self.assertIn("&lt;img src=x onerror=alert(1)&gt;\\u202e", table)

    def test_failures_have_codes(self):
        taken = self.folder / "taken.safetensors"
        taken.write_text("somebody's")
        for code, call in (("not found", lambda: unishard.verify(self.folder / "nothing")),
                           ("invalid argument", lambda: unishard.verify(GOLDEN / "v1", dep=True)),
                           ("already exists", lambda: unishard.zero_to_fp32(GOLDEN / "v1", taken, memory_limit="64MiB")),
                           ("invalid argument", lambda: unishard.convert(GOLDEN / "v1", self.folder / "x", to="nothing"))):
            with self.assertRaises(unishard.Error) as caught:
                call()
            self.assertEqual(caught.exception.code, code, caught.exception)
            self.assertIn(caught.exception.status, (2, 3))

    def make_large_file(self):
        """Makes a sparse file of 2 GiB, and an empty folder for what becomes of it."""
        header = json.dumps({"w": {"dtype": "F32", "shape": [1 << 29], "data_offsets": [0, 1 << 31]}}).encode()
        with open(self.folder / "large.safetensors", "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + (1 << 31))
        (self.folder / "out").mkdir()
        return self.folder / "large.safetensors", self.folder / "out" / "run"

    def test_progress_comes_to_the_end(self):
        seen = []
        unishard.convert(GOLDEN / "v1", self.folder / "run", to="native", progress=lambda *report: seen.append(report))
        self.assertEqual([what for _, what in seen if what != "check"], ["convert"] * sum(what != "check" for _, what in seen))
        self.assertEqual(max(fraction for fraction, _ in seen), 1.0)
        self.assertTrue(all(0 <= fraction <= 1 for fraction, _ in seen), seen)
        drawn = subprocess.run([sys.executable, "-c", "import sys, unishard; unishard.verify(sys.argv[1], deep=True, progress=True)",
                                str(self.folder / "run")], capture_output=True)
        self.assertRegex(drawn.stderr, rb"^\rverify +\[#* *\]")
        self.assertTrue(drawn.stderr.endswith(b"100%\n"), drawn.stderr)

    def test_a_set_event_ends_the_program_and_leaves_nothing(self):
        large, run = self.make_large_file()
        stop = threading.Event()
        with self.assertRaises(unishard.Error) as caught:
            unishard.convert(large, run, to="native", compress="zstd", threads=1, cancel=stop, progress=lambda *_: stop.set())
        self.assertEqual((caught.exception.code, caught.exception.status), ("cancelled", 128 + signal.SIGINT))
        self.assertEqual([str(path) for path in run.parent.rglob("*")], [])
        with self.assertRaises(unishard.Error) as caught:
            unishard.convert(large, run, to="native", cancel=stop)
        self.assertEqual(caught.exception.code, "cancelled")
        with self.assertRaises(unishard.Error) as caught:
            unishard.verify(GOLDEN / "v1", cancel=stop)  # it would be done before it looked
        self.assertEqual(caught.exception.code, "cancelled")
        self.assertFalse(unishard.verify(GOLDEN / "v1", cancel=threading.Event())["findings"])

    def test_one_rank_of_a_job_does_the_whole_work(self):
        for launched in ({"RANK": "1", "WORLD_SIZE": "2"}, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
                         {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3"}):
            with unittest.mock.patch.dict(os.environ, launched):
                self.assertTrue(unishard.verify(GOLDEN / "v1", deep=True)["ok"])
                run = self.folder / "-".join(launched)
                self.assertTrue(unishard.reshard(GOLDEN / "v1", run, world_size=2, procs=2)["equal"])
                self.assertTrue(unishard.verify(run, deep=True)["ok"])

    def test_what_progress_raises_ends_the_program_and_leaves_nothing(self):
        def report(fraction, what):
            raise LookupError(what)
        large, run = self.make_large_file()
        with self.assertRaisesRegex(LookupError, "convert"):
            unishard.convert(large, run, to="native", compress="zstd", threads=1, progress=report)
        self.assertEqual([str(path) for path in run.parent.rglob("*")], [])

    def test_an_interrupt_ends_the_program_and_leaves_nothing(self):
        large, run = self.make_large_file()
        script = ("import signal, sys, unishard; signal.signal(signal.SIGINT, signal.default_int_handler); print('begin', flush=True); "
                  "unishard.convert(sys.argv[1], sys.argv[2], to='native', compress='zstd', threads=1)")
        child = subprocess.Popen([sys.executable, "-c", script, str(large), str(run)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True)
        child.stdout.readline()
        deadline = time.monotonic() + 30
        while not any(run.parent.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        said = child.communicate(timeout=60)[1]
        self.assertIn("KeyboardInterrupt", said)
        self.assertEqual([str(path) for path in run.parent.rglob("*")], [])

    def test_the_program_takes_the_place_of_python(self):
        done = subprocess.run([sys.executable, "-m", "unishard", "verify", str(GOLDEN / "v1")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(os.access(unishard.program(), os.X_OK))


class Neighbours(unittest.TestCase):
    """The libraries inside this one and those of other packages in the same process: h5py's HDF5, torch's C++ library."""

    SCRIPT = """
import sys
for name in sys.argv[3:]:
    __import__(name)
import h5py, numpy, unishard
golden, made = sys.argv[1:3]
for _ in range(3):
    with h5py.File(made) as file, unishard.open(golden) as checkpoint:
        names = [name for name in file if name in checkpoint and "fp32" in checkpoint.states(name)]
        assert len(names) > 5, names
        with unishard.open(made) as same:
            for name in names:
                values = file[name][...]
                numpy.testing.assert_array_equal(values, same[name].numpy())
                numpy.testing.assert_array_equal(values, checkpoint[name].numpy())
    with h5py.File(made + ".own", "w") as file:
        file.create_dataset("values", data=values, compression="gzip")
    with unishard.open(made + ".own") as own:
        numpy.testing.assert_array_equal(own["values"].numpy(), values)
    if "torch" in sys.argv:
        import torch
        torch.save({"w": torch.from_numpy(values)}, made + ".pt")
        numpy.testing.assert_array_equal(unishard.open(made + ".pt")["w"].torch().numpy(), values)
"""

    def test_h5py_and_torch_in_the_same_process(self):
        if importlib.util.find_spec("h5py") is None:
            self.skipTest("h5py is not installed")
        packages = ["h5py", "unishard"] + (["torch"] if importlib.util.find_spec("torch") else [])
        with tempfile.TemporaryDirectory() as folder:
            made = os.path.join(folder, "made.h5")
            unishard.zero_to_fp32(GOLDEN / "v1", made)
            for order in (packages, packages[::-1]):  # either of two first
                done = subprocess.run([sys.executable, "-c", self.SCRIPT, str(GOLDEN / "v1"), made, *order], capture_output=True,
                                      text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""), order)


ENGINE = """
import os, socket, torch
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
import deepspeed
deepspeed.init_distributed("gloo")
engine = deepspeed.initialize(model=torch.nn.Linear(3, 4), config={"train_batch_size": 1, "zero_optimization": {"stage": 2},
                              "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}})[0]
"""


class Readme(unittest.TestCase):
    def test_the_examples_run(self):
        lines = (Path(__file__).resolve().parents[2] / "tools/python/README.md").read_text().splitlines()
        blocks = [[]]
        for line in lines:
            if line.startswith("    ") or not line and blocks[-1]:
                blocks[-1].append(line[4:])
            elif blocks[-1]:
                blocks.append([])
        examples = ["\n".join(block) for block in blocks if block and block[0].startswith("import")]
        self.assertEqual(len(examples), 7)
        for example in examples:
            if "torch" in example:
                try:
                    import torch  # noqa: F401
                except ImportError:
                    continue
                example = ("import torch; model = torch.nn.Linear(3, 4); optimizer = torch.optim.AdamW(model.parameters()); step = 0\n" +
                           example)
            if "unishard.deepspeed" in example:
                if importlib.util.find_spec("deepspeed") is None:
                    continue
                example = ENGINE + example
            with tempfile.TemporaryDirectory() as folder:
                shutil.copytree(GOLDEN / "v1", Path(folder) / "runs" / "gpt")
                done = subprocess.run([sys.executable, "-W", "ignore", "-c", example], cwd=folder, capture_output=True, text=True)
                self.assertEqual((done.returncode, "" if "deepspeed" in example else done.stderr), (0, ""), example + done.stderr)


class Script(unittest.TestCase):
    def test_a_program_that_is_missing_is_named(self):
        environment = {**os.environ, "UNISHARD_LIBRARY_DIR": "/nonexistent"}
        ended = subprocess.run([sys.executable, "-m", "unishard", "--help"], env=environment, capture_output=True, text=True)
        self.assertEqual(ended.returncode, 3)
        self.assertRegex(ended.stderr, "^unishard: /nonexistent/unishard: No such file or directory; install")


if __name__ == "__main__":
    unittest.main()
