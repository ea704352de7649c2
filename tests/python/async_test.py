#!/usr/bin/env python3
"""Tests async_save() of unishard.torch and unishard.deepspeed, and unishard.dcp.Writer under dcp.async_save().

    UNISHARD_LIBRARY_DIR=BUILD/bin PYTHONPATH=tools/python async_test.py
"""
import ctypes
import functools
import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
import unittest
import unittest.mock
import warnings
from pathlib import Path

try:
    import torch
    import torch.distributed.checkpoint as dcp
except ImportError:
    sys.exit(77)

import unishard
import unishard.torch
from unishard import _background, _parts, _pinned, _saving, _snapshot
from unishard.dcp import Reader, Writer

# What the scripts below begin with. A write sets `writing` and waits for `may_write`.
PRELUDE = """
import os, signal, sys, threading, time
from pathlib import Path
import torch, torch.distributed as dist
import unishard, unishard.torch
from unishard import _parts, _saving
folder, rank, world = Path(sys.argv[1]), int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
writing, may_write, write_shard = threading.Event(), threading.Event(), _saving.write_shard
def gated(*arguments):
    writing.set()
    assert may_write.wait(60)
    return write_shard(*arguments)
_saving.write_shard = gated
def model(value, size=8):
    made = torch.nn.Linear(size, size)
    for one in made.parameters():
        torch.nn.init.constant_(one, value)
    return made
if world > 1:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
"""


def linear(value, size=8):
    model = torch.nn.Linear(size, size)
    for one in model.parameters():
        torch.nn.init.constant_(one, value)
    return model


class Folders(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        self.top = Path(tempfile.mkdtemp(prefix="unishard-async-"))
        self.addCleanup(shutil.rmtree, self.top)
        self.addCleanup(_background._unsettled.clear)
        self.run_ = self.top / "run"

    def gate(self):
        """Lets each write of this process wait for the event that it returns; the other event is set when a write has begun."""
        may_write, writing = threading.Event(), threading.Event()

        def write(*arguments):
            writing.set()
            self.assertTrue(may_write.wait(60))
            return _parts.write_shard(*arguments)

        patched = unittest.mock.patch.object(_saving, "write_shard", write)
        patched.start()
        self.addCleanup(patched.stop)
        self.addCleanup(may_write.set)
        return may_write, writing

    def start(self, script, rank=0, world=1):
        """Starts a rank of a job that runs the script."""
        script = textwrap.dedent(script)
        environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", PRELUDE + script, str(self.top)],
                                   env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def job(self, script, world=1, is_cut=True):
        """Runs a job to its end. Returns each rank's standard output; its errors fail the test.

        is_cut: ranks leave out Python's own end, which Gloo's threads can abort: https://github.com/pytorch/pytorch/pull/179291
        """
        script = textwrap.dedent(script) + ("\nsys.stdout.flush()\nos._exit(0)\n" if world > 1 and is_cut else "")
        processes = [self.start(script, rank, world) for rank in range(world)]
        outputs = [process.communicate(timeout=120) for process in processes]
        self.assertEqual([process.returncode for process in processes], [0] * world, "\n".join(error for _, error in outputs))
        return [printed for printed, _ in outputs]

    def holds(self, value, folder=None, tag=None):
        """Expects that a checkpoint, by default the one that `latest` names, is whole and has one value everywhere."""
        self.assertTrue(unishard.verify(folder or self.run_, deep=True)["ok"])
        with unishard.open(folder or self.run_, tag=tag) as checkpoint:
            for tensor in checkpoint.tensors.values():
                self.assertEqual(set(tensor.torch().flatten().tolist()), {value})

    def latest(self):
        return (self.run_ / "latest").read_text().strip()

    def tags(self):
        return sorted(path.parent.name for path in self.run_.glob("*/manifest.json"))


class Odd(torch.nn.Module):
    """Has tensors of every kind that a copy could miss: tied, frozen, not contiguous, conjugated, empty, small, 16 bits wide."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = torch.nn.Linear(5, 7), torch.nn.Linear(7, 5).bfloat16()
        self.tied = torch.nn.Linear(5, 7)
        self.tied.weight = self.first.weight
        self.turned = torch.nn.Parameter(torch.randn(4, 6).t())
        self.first.bias.requires_grad_(False)
        numbers = torch.complex(torch.randn(3), torch.randn(3))
        for name, values in {"conjugated": numbers.conj(), "empty": torch.zeros(0, 3), "flags": torch.tensor([True, False, True]),
                             "count": torch.tensor(7)}.items():
            self.register_buffer(name, values)


class Copies(Folders):
    def test_a_save_has_the_state_of_its_call(self):
        for name, make in {"AdamW": functools.partial(torch.optim.AdamW, lr=torch.tensor(0.1), foreach=False),
                           "NAdam": functools.partial(torch.optim.NAdam, lr=0.1),
                           "SGD": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)}.items():
            for compress in ("none", "zstd"):
                with self.subTest(optimizer=name, compress=compress):
                    self.check_call(make, self.top / f"{name}-{compress}", compress)

    def check_call(self, make, folder, compress):
        model = Odd()
        optimizer = make([one for one in model.parameters() if one.requires_grad])
        def step():
            for one in model.parameters():
                one.grad = torch.ones_like(one) if one.requires_grad else None
            optimizer.step()
        step()
        client_state = {"epoch": [1, 2], "rng": torch.get_rng_state().numpy(), "text": bytearray(b"abc")}
        options = {"step": 3, "client_state": client_state, "compress": compress}
        unishard.torch.save(folder / "now", model, optimizer, **options)
        may_write, writing = self.gate()
        saving = unishard.torch.async_save(folder / "later", model, optimizer, **options)
        self.assertTrue(writing.wait(60))
        self.assertFalse(saving.done())
        step()
        with torch.no_grad():
            for one in [*model.parameters(), *model.buffers(), *(value for state in optimizer.state.values() for value in state.values()
                                                                 if isinstance(value, torch.Tensor))]:
                one.zero_()
        for group in optimizer.param_groups:
            group["lr"] *= 0
        client_state["epoch"].append(3)
        client_state["rng"].fill(0)
        client_state["text"] *= 0
        may_write.set()
        self.assertEqual(saving.result(60), folder / "later" / "global_step3")
        self.assertTrue(saving.done())
        self.assertTrue(unishard.diff(folder / "now", folder / "later")["equal"])
        self.assertEqual(*(str(unishard.open(folder / name).client_state) for name in ("now", "later")))
        self.assertEqual(*(unishard.open(folder / name).groups for name in ("now", "later")))

    def test_a_changed_folder_of_the_process_changes_nothing(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.top)
        may_write, _ = self.gate()
        saving = unishard.torch.async_save("run", linear(1.0), step=1)
        os.chdir("/")
        may_write.set()
        self.assertEqual(saving.result(60), Path("run/global_step1"))
        self.holds(1.0)

    def test_memory_serves_the_next_save(self):
        _snapshot._spare.clear()
        model = linear(1.0, 64)
        with torch.inference_mode(), torch.device("meta"):
            unishard.torch.async_save(self.run_, model, step=1).result()
        place = _snapshot._spare[0].content.data_ptr()
        unishard.torch.async_save(self.run_, linear(2.0, 32), step=2).result()
        unishard.torch.async_save(self.run_, linear(3.0, 64), step=3).result()
        self.assertEqual([memory.content.data_ptr() for memory in _snapshot._spare], [place])
        unishard.torch.async_save(self.run_, linear(4.0, 128), step=4).result()
        self.assertEqual([memory.content.numel() >= 128 * 128 * 4 for memory in _snapshot._spare], [True])
        for step in range(1, 5):
            self.holds(float(step), tag=f"global_step{step}")

    def test_a_failed_save_keeps_no_copy(self):
        _snapshot._spare.clear()
        with unittest.mock.patch.object(_parts, "_write", side_effect=OSError("no more")):
            saving = unishard.torch.async_save(self.run_, linear(1.0, 64), step=1)
            self.assertTrue(saving._wait(60))
        kept = [value for frame, _ in traceback.walk_tb(saving._error.__traceback__) for value in frame.f_locals.values()]
        self.assertFalse([value for value in kept if isinstance(value, (list, torch.Tensor))])
        with self.assertRaisesRegex(OSError, "no more"):
            saving.result()
        place = _snapshot._spare[0].content.data_ptr()
        unishard.torch.async_save(self.run_, linear(2.0, 64), step=2).result()
        self.assertEqual([memory.content.data_ptr() for memory in _snapshot._spare], [place])
        self.holds(2.0)


    def test_copies_from_a_device_need_pinned_memory_and_wait_once(self):
        """With stand-ins for torch.cuda, because this needs no device."""
        class OnDevice:
            device, is_cuda, dtype = torch.device("cuda", 0), True, torch.float32

            def __init__(self, on_host):
                self.on_host = on_host

            def element_size(self):
                return 4

        cuda, flat = unittest.mock.MagicMock(), _parts.flat_elements
        values, host = torch.arange(100.0), torch.arange(10)
        stand_in = unittest.mock.Mock(wraps=torch, cuda=cuda, uint8=torch.uint8)
        with unittest.mock.patch.object(_pinned, "torch", stand_in), \
                unittest.mock.patch.multiple(_snapshot, torch=stand_in, _spare=[],
                                             flat_elements=lambda one: flat(getattr(one, "on_host", one))):
            for first, last in ((50, 100), (0, 50), (0, 100)):
                snapshot = _snapshot.Snapshot([_parts.Part((0, first, last), OnDevice(values), first), _parts.Part((1, 0, 10), host, 0)])
                self.assertTrue(torch.equal(snapshot.parts[0].local, values[first:last]))
                self.assertTrue(torch.equal(snapshot.parts[1].local, host))
                snapshot.release()
            self.assertEqual((cuda.cudart().cudaHostRegister.call_count, cuda.cudart().cudaHostUnregister.call_count), (2, 1))
            self.assertEqual((cuda.stream.call_count, cuda.Stream().synchronize.call_count, cuda.Stream().wait_stream.call_count), (3, 3, 3))
            self.assertEqual(cuda.device.call_args_list, [unittest.mock.call(OnDevice.device)] * 3)
            del snapshot
            _snapshot._spare.clear()  # while the stand-ins are there

    def test_pieces_from_a_device_go_through_memory_that_is_used_again(self):
        """With stand-ins for torch.cuda, because this needs no device."""
        class OnDevice:
            device, is_cuda, dtype = torch.device("cuda", 0), True, torch.float32
            element_size = staticmethod(lambda: 4)

            def __getitem__(self, key):
                return values[key]

        values, written, cuda = torch.arange(100.0), [], unittest.mock.MagicMock()

        class Shard:
            def write(self, number, low, high, address, size):
                written.append((number, low, high, ctypes.string_at(address, size)))

        stand_in = unittest.mock.Mock(wraps=torch, cuda=cuda, uint8=torch.uint8)
        with unittest.mock.patch.object(_pinned, "torch", stand_in), \
                unittest.mock.patch.multiple(_parts, _PIECE_BYTES=128, _pieces=[], flat_elements=lambda one: one):
            for _ in range(2):
                _parts._write(Shard(), [(0, _parts.Part((0, 0, 100), OnDevice(), 0))])
            self.assertEqual(len(_parts._pieces), 1)
            _parts._pieces.clear()  # while the stand-ins are there
        expected = [(0, low, min(100, low + 32), values[low:low + 32].numpy().tobytes()) for low in range(0, 100, 32)]
        self.assertEqual(written, expected * 2)
        self.assertEqual((cuda.cudart().cudaHostRegister.call_count, cuda.cudart().cudaHostUnregister.call_count), (1, 1))

    def test_a_save_goes_on_where_memory_cannot_be_pinned(self):
        """With stand-ins for torch.cuda, because this needs no device."""
        cuda, device = unittest.mock.MagicMock(), torch.device("cuda", 1)
        cuda.check_error.side_effect = RuntimeError("CUDA error:\nout of memory")
        stand_in = unittest.mock.Mock(wraps=torch, cuda=cuda, uint8=torch.uint8)
        with unittest.mock.patch.object(_pinned, "torch", stand_in), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            memory = _pinned.take([], 100, device)
            self.assertIs(_pinned.take([memory], 100, device), memory)
            stand_in.ones.assert_called_once_with(1, device=device)
        self.assertEqual([str(one.message) for one in caught],
                         ["100 bytes of memory cannot be pinned, so copies from cuda:1 are slow: CUDA error: out of memory"])
        self.assertEqual(cuda.cudart().cudaHostUnregister.call_count, 0)


class Order(Folders):
    def test_saves_take_turns(self):
        may_write, _ = self.gate()
        first = unishard.torch.async_save(self.run_, linear(1.0), step=1, keep_last=1)
        self.assertEqual(first.waited < 0.1, True)
        with self.assertRaises(TimeoutError):
            first.result(0.01)
        threading.Timer(0.3, may_write.set).start()
        second = unishard.torch.async_save(self.run_, linear(2.0), step=2, keep_last=1)
        self.assertTrue(first.done())
        self.assertGreater(second.waited, 0.1)
        self.assertEqual(unishard.torch.save(self.run_, linear(3.0), step=3, keep_last=1), self.run_ / "global_step3")
        self.assertTrue(second.done())
        self.assertEqual((self.latest(), self.tags()), ("global_step3", ["global_step3"]))
        self.holds(3.0)

    def test_latest_never_goes_back(self):
        seen, ended = [], threading.Event()

        def watch():
            while not ended.is_set():
                if (self.run_ / "latest").exists() and (not seen or seen[-1] != self.latest()):
                    seen.append(self.latest())

        watcher = threading.Thread(target=watch)
        watcher.start()
        for step in range(1, 13):
            save = unishard.torch.save if step % 4 == 0 else unishard.torch.async_save
            save(self.run_, linear(float(step)), step=step, keep_last=2)
        _background.settle()
        ended.set()
        watcher.join()
        self.assertEqual(seen, sorted(seen, key=lambda tag: int(tag.removeprefix("global_step"))))
        self.assertEqual((self.latest(), self.tags()), ("global_step12", ["global_step11", "global_step12"]))
        self.holds(12.0)

    def test_a_load_waits(self):
        may_write, _ = self.gate()
        unishard.torch.async_save(self.run_, linear(1.0), step=1)
        threading.Timer(0.2, may_write.set).start()
        model = linear(0.0)
        self.assertEqual(unishard.torch.load(self.run_, model).step, 1)
        self.assertEqual(set(model.weight.flatten().tolist()), {1.0})

    def test_dcp_waits(self):
        may_write, _ = self.gate()
        first = unishard.torch.async_save(self.run_, linear(1.0), step=1)
        threading.Timer(0.2, may_write.set).start()
        dcp.save({"weight": torch.ones(3)}, storage_writer=Writer(self.run_, step=2))
        self.assertTrue(first.done())
        self.assertEqual(self.latest(), "global_step2")


class Errors(Folders):
    def test_an_error_of_the_write_reaches_result_or_the_next_call_or_the_end(self):
        """The file system refuses what is larger than a limit."""
        printed, = self.job("""
            import resource
            may_write.set()
            unishard.torch.save(folder / "run", model(1.0), step=1)
            def limit(size):
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            def fail():
                limit(1 << 16)
                saving = unishard.torch.async_save(folder / "run", model(2.0, 512), step=2)
                saving._wait()
                limit(resource.RLIM_INFINITY)
                return saving
            def message(work):
                try:
                    return f"returned {work()}"
                except unishard.Error as error:
                    return str(error)
            def save(step):
                return unishard.torch.save(folder / "run", model(3.0), step=step)
            saving = fail()
            for work in (saving.result, saving.result, lambda: save(3)):
                print(message(work))
            for work in (lambda: save(4), lambda: unishard.torch.async_save(folder / "run", model(3.0), step=4).result(),
                         lambda: unishard.torch.load(folder / "run", model(0.0))):
                fail()
                print(message(work))
            print(message(work))
            sys.stderr = sys.stdout
            fail()
        """)
        lines = printed.splitlines()
        for line in lines[:2]:
            self.assertRegex(line, "^(?!the asynch).*File too large")
        self.assertRegex(lines[2], "returned .*global_step3$")
        for line in lines[3:6]:
            self.assertRegex(line, "^the asynchronous save of .*run/global_step2 has failed: .*File too large")
        self.assertRegex(lines[6], r"^returned Loaded\(step=3")
        self.assertRegex(lines[7], "^unishard: the asynchronous save of .*run/global_step2 has failed: .*File too large")
        self.assertEqual((self.latest(), self.tags()), ("global_step3", ["global_step1", "global_step3"]))

    def test_what_is_wrong_before_the_write_is_raised_at_once(self):
        holder = self.start("""
            may_write.set()
            unishard.torch.save(folder / "run", model(1.0), step=1)
            print(flush=True)
            time.sleep(60)
        """)
        holder.stdout.readline()
        self.refused("busy")
        self.refused("invalid argument", client_state={"x": object()})
        holder.kill()
        holder.wait()
        self.refused("already exists")
        self.assertEqual(self.tags(), ["global_step1"])

    def refused(self, code, **options):
        with self.assertRaises(unishard.Error) as caught:
            unishard.torch.async_save(self.run_, linear(2.0), step=2, **options)
        self.assertEqual(caught.exception.code, code)


class Ends(Folders):
    def test_an_interrupted_script_completes_its_save(self):
        process = self.start("""
            unishard.torch.async_save(folder / "run", model(1.0, 200), step=1)
            threading.Timer(1.0, may_write.set).start()
            print("saving", flush=True)
            time.sleep(60)
        """)
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
        self.assertIn("KeyboardInterrupt", error)
        self.assertEqual(process.returncode, -signal.SIGINT)
        self.holds(1.0)

    def test_a_second_interrupt_gives_the_save_up(self):
        process = self.start("""
            may_write.set()
            unishard.torch.save(folder / "run", model(1.0), step=1)
            may_write.clear()
            unishard.torch.async_save(folder / "run", model(2.0, 200), step=2)
            print("saving", flush=True)
            time.sleep(60)
        """)
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
        self.assertIn("global_step2 was given up", error)
        self.assertEqual((self.latest(), self.tags()), ("global_step1", ["global_step1"]))
        self.holds(1.0)

    def test_interrupts_of_the_call_leave_nothing(self):
        def interrupt(number, frame):
            raise KeyboardInterrupt
        model = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(4)])
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, interrupt))
        unishard.torch.async_save(self.run_, model, step=0).result()
        interrupted = 0
        for number in range(1, 25):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0007 * number)
                unishard.torch.async_save(self.run_, model, step=number, keep_last=1)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except (KeyboardInterrupt, unishard.Error):  # of a save that was given up
                interrupted += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        self.assertGreater(interrupted, 0)
        for _ in range(2):
            try:
                unishard.torch.save(self.run_, model, step=100, keep_last=1)
                break
            except unishard.Error as error:  # of a save that was given up
                self.assertIn("the asynchronous save of", str(error))
        self.assertEqual({one.name for one in self.run_.iterdir()} - {".training-lock"}, {"latest", "global_step100"})

    def test_a_process_that_is_killed_leaves_the_former_checkpoint(self):
        process = self.start("""
            may_write.set()
            unishard.torch.async_save(folder / "run", model(1.0), step=1).result()
            def stuck(shard, parts):
                write(shard, parts[:1])
                print("writing", flush=True)
                time.sleep(60)
            write, _parts._write = _parts._write, stuck
            unishard.torch.async_save(folder / "run", model(2.0, 200), step=2, keep_last=1)
        """)
        process.stdout.readline()
        process.kill()
        process.wait()
        self.assertEqual((self.latest(), self.tags()), ("global_step1", ["global_step1"]))
        self.holds(1.0)
        unishard.torch.load(self.run_, linear(0.0))
        unishard.torch.save(self.run_, linear(3.0), step=3, keep_last=1)
        self.assertEqual({one.name for one in self.run_.iterdir()} - {".training-lock"}, {"latest", "global_step3"})

    def test_a_forked_process_saves_nothing(self):
        printed, = self.job("""
            import gc
            saving = unishard.torch.async_save(folder / "run", model(1.0, 200), step=1)
            assert writing.wait(60)
            child = os.fork()
            if child == 0:
                may_write.set()
                gc.collect()
                try:
                    saving.result(10)
                except unishard.Error as error:
                    print(error.code, flush=True)
                try:
                    unishard.torch.save(folder / "run", model(2.0), step=2)
                except unishard.Error as error:
                    print(error.code, flush=True)
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert not saving.done() and not (folder / "run" / "latest").exists()
            may_write.set()
            saving.result()
        """)
        self.assertEqual(printed.split(), ["cancelled", "busy"])
        self.assertEqual((self.latest(), self.tags()), ("global_step1", ["global_step1"]))
        self.holds(1.0)


class Ranks(Folders):
    def test_training_communicates_meanwhile(self):
        self.job("""
            from torch.distributed.fsdp import fully_shard
            trained = model(1.0, 40)
            fully_shard(trained)
            optimizer = torch.optim.AdamW(trained.parameters(), lr=0.1)
            threading.Timer(0.5 + rank, may_write.set).start()
            for step in range(1, 4):
                trained(torch.ones(2, 40)).sum().backward()
                optimizer.step()
                saving = unishard.torch.async_save(folder / "run", trained, optimizer, step=step, keep_last=2)
                unsaved = 0
                while unsaved < 200 or not writing.is_set():  # both ranks do the same number of rounds
                    total = torch.tensor([float(unsaved + rank)])
                    dist.all_reduce(total)
                    assert total.item() == 2 * unsaved + 1, total
                    more = torch.tensor([float(writing.is_set())])
                    dist.all_reduce(more, op=dist.ReduceOp.MIN)
                    unsaved += 1
                    if unsaved >= 200 and more.item():
                        break
                values = [one.full_tensor().clone() for one in trained.parameters()]
            dist.destroy_process_group()
            saving.result()
            if rank == 0:
                with unishard.open(folder / "run") as checkpoint:
                    for (name, _), value in zip(trained.named_parameters(), values):
                        assert torch.equal(checkpoint[name].torch(), value), name
        """, world=2)
        self.assertEqual((self.latest(), self.tags()), ("global_step3", ["global_step2", "global_step3"]))
        self.assertTrue(unishard.verify(self.run_, deep=True)["ok"])

    def test_an_error_of_one_rank_reaches_all(self):
        printed = self.job("""
            may_write.set()
            trained = model(1.0)
            def failing(*arguments):
                raise unishard.Error("no space", "the disk is full")
            def message(work):
                try:
                    return f"returned {work().name}"
                except unishard.Error as error:
                    return f"{error.code}: {error}"
            unishard.torch.save(folder / "run", trained, step=1)
            if rank == 1:
                _saving.write_shard = failing
            saving = unishard.torch.async_save(folder / "run", trained, step=2)
            if rank == 0:
                print(message(saving.result))
            saving._wait()
            _saving.write_shard = gated
            print(message(lambda: unishard.torch.async_save(folder / "run", trained, step=3).result()))
            print(message(lambda: unishard.torch.async_save(folder / "run", trained, step=4).result()))
            dist.barrier()
        """, world=2)
        first, second = (lines.splitlines() for lines in printed)
        self.assertRegex(first[0], "^no space: writing the shards: rank 1: the disk is full")
        for line in (first[1], second[0]):
            self.assertRegex(line, "^no space: .*the asynchronous save of .*global_step2 has failed: .*the disk is full")
        self.assertEqual((first[2], second[1]), ("returned global_step4",) * 2)
        self.assertEqual(self.tags(), ["global_step1", "global_step4"])

    def test_scripts_that_end_complete_their_save(self):
        self.job("""
            trained = model(1.0, 100)
            unishard.torch.async_save(folder / "run", trained, step=1)
            threading.Timer(0.2 + rank, may_write.set).start()
            dist.destroy_process_group()
        """, world=2, is_cut=False)
        self.holds(1.0)


@unittest.skipUnless(importlib.util.find_spec("deepspeed"), "DeepSpeed is not installed")
class DeepSpeed(Folders):
    def test_a_save_has_the_state_of_its_call(self):
        self.job("""
            import deepspeed, unishard.deepspeed
            deepspeed.init_distributed(dist_backend="gloo")
            for stage in (1, 3):
                torch.manual_seed(1)
                config = {"train_batch_size": 2, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage},
                          "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "torch_adam": True}}, "steps_per_print": 1000}
                layers = torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.Linear(9, 3))
                engine = deepspeed.initialize(model=layers, model_parameters=layers.parameters(), config=config)[0]
                def step(seed):
                    values = torch.randn(1, 9, generator=torch.Generator().manual_seed(seed)).bfloat16()
                    engine.backward(engine(values).float().square().mean())
                    engine.step()
                step(1)
                mine = {"note": torch.ones(3), "list": [1]}
                may_write.set()
                unishard.deepspeed.save(engine, folder / f"now{stage}", client_state=mine)
                may_write.clear()
                saving = unishard.deepspeed.async_save(engine, folder / f"later{stage}", client_state=mine, keep_last=1)
                for seed in (2, 3):
                    step(seed)
                mine["note"].zero_()
                mine["list"].append(2)
                assert not saving.done()
                may_write.set()
                assert saving.result(60).name == "global_step1"
                unishard.deepspeed.load(engine, folder / f"later{stage}")
                assert engine.global_steps == 1
        """, world=2)
        for stage in (1, 3):
            now, later = self.top / f"now{stage}", self.top / f"later{stage}"
            self.assertTrue(unishard.diff(now, later)["equal"])
            self.assertEqual(*(str(unishard.open(one).client_state) for one in (now, later)))


class Dcp(Folders):
    """unishard.dcp.Writer under dcp.async_save()."""

    def test_a_save_has_the_state_of_its_call(self):
        begun, may_write = threading.Event(), threading.Event()

        class Slow(Writer):
            def write_data(self, plan, planner):
                begun.set()
                may_write.wait(60)
                return super().write_data(plan, planner)

        state = {"w": torch.ones(1000), "epoch": [1, 2]}
        saving = dcp.async_save(state, storage_writer=Slow(self.run_, step=1), no_dist=True)
        self.assertTrue(begun.wait(60))
        state["w"].zero_()
        may_write.set()
        saving.result()
        loaded = {"w": torch.zeros(1000), "epoch": None}
        dcp.load(loaded, storage_reader=Reader(self.run_), no_dist=True)
        self.assertTrue(torch.equal(loaded["w"], torch.ones(1000)))

    def slow(self):
        """Returns a kind of Writer whose writes wait for the event `may_write` of the Writer."""
        class Slow(Writer):
            def __init__(self, *arguments, **options):
                super().__init__(*arguments, **options)
                self.writing, self.may_write = threading.Event(), threading.Event()

            def write_data(self, plan, planner):
                self.writing.set()
                assert self.may_write.wait(60)
                return super().write_data(plan, planner)

        return Slow

    def test_dcp_takes_the_writer_as_its_stager(self):
        self.assertIsInstance(Writer(self.run_, step=1), dcp.staging.AsyncStager)
        with unittest.mock.patch.object(dcp.state_dict_saver, "DefaultStager", side_effect=AssertionError, create=True):
            dcp.async_save({"w": torch.ones(3)}, storage_writer=Writer(self.run_, step=1), no_dist=True).result()
        self.holds(1.0)

    def test_a_copy_has_every_kind_of_value(self):
        """The copy, saved after everything was changed, equals what a save at the time of the call has."""
        model = Odd()
        state = {"model": model.state_dict(), "parameter": model.first.weight, "twice": model.first.weight * 2,
                 "list": [torch.ones(3), {"deep": torch.zeros(2, 0)}], "tuple": (1, "a"), "epoch": [1, 2], "one": torch.tensor(5)}
        dcp.save(state, storage_writer=Writer(self.top / "now", step=1), no_dist=True)
        writer = self.slow()(self.top / "later", step=1)
        saving = dcp.async_save(state, storage_writer=writer, no_dist=True)
        with torch.no_grad():
            for one in [*state["model"].values(), state["twice"], state["list"][0], state["one"]]:
                one.zero_()
        state["epoch"].append(3)
        writer.may_write.set()
        saving.result()
        self.assertTrue(unishard.diff(self.top / "now", self.top / "later")["equal"])
        self.assertEqual(*(str(unishard.open(self.top / name).client_state) for name in ("now", "later")))

    def test_memory_serves_the_next_save(self):
        _snapshot._spare.clear()
        places = set()
        for step in range(1, 6):
            dcp.async_save({"w": torch.full((1000,), float(step))}, storage_writer=Writer(self.run_, step=step), no_dist=True).result()
            self.wait_for_memory()
            places.update(memory.content.data_ptr() for memory in _snapshot._spare)
        self.assertEqual(len(places), 1)
        unishard.torch.async_save(self.run_, linear(6.0, 8), step=6).result()
        self.assertEqual({memory.content.data_ptr() for memory in _snapshot._spare}, places)
        for step in range(1, 7):
            self.holds(float(step), tag=f"global_step{step}")

    def wait_for_memory(self):
        end = time.monotonic() + 10
        while not _snapshot._spare and time.monotonic() < end:
            time.sleep(0.001)

    def test_saves_that_overlap_keep_their_memory_and_their_order(self):
        _snapshot._spare.clear()
        writers = [self.slow()(self.run_, step=step) for step in (1, 2)]
        savings = [dcp.async_save({"w": torch.full((1000,), float(step))}, storage_writer=writer, no_dist=True)
                   for step, writer in enumerate(writers, 1)]
        self.assertTrue(all(writer.writing.wait(60) for writer in writers))
        self.assertEqual(_snapshot._spare, [])
        for writer, saving in reversed(list(zip(writers, savings))):
            writer.may_write.set()
            saving.result()
        self.assertEqual((self.latest(), self.tags()), ("global_step2", ["global_step1", "global_step2"]))
        for step in (1, 2):
            self.holds(float(step), tag=f"global_step{step}")
        self.wait_for_memory()
        self.assertEqual(len(_snapshot._spare), 1)

    def test_memory_of_a_failed_save_serves_again_when_its_future_is_gone(self):
        _snapshot._spare.clear()
        with unittest.mock.patch.object(_parts, "_write", side_effect=OSError("no more")):
            saving = dcp.async_save({"w": torch.ones(1000)}, storage_writer=Writer(self.run_, step=1), no_dist=True)
            with self.assertRaisesRegex(dcp.api.CheckpointException, "no more"):
                saving.result()
        del saving
        gc.collect()
        self.wait_for_memory()
        place = _snapshot._spare[0].content.data_ptr()
        dcp.async_save({"w": torch.full((1000,), 2.0)}, storage_writer=Writer(self.run_, step=2), no_dist=True).result()
        self.wait_for_memory()
        self.assertEqual([memory.content.data_ptr() for memory in _snapshot._spare], [place])
        self.holds(2.0)

    def test_copies_have_storages_of_their_own(self):
        """Objects with tensors are pickled with the storages, and a process that saves gets them as shared memory."""
        _snapshot._spare.clear()
        state = {"a": torch.ones(3), "pair": (torch.zeros(2, 2), 1), "none": torch.ones(0)}
        made = Writer(self.run_, step=1).stage(state)
        self.assertEqual([made["a"].untyped_storage().nbytes(), made["pair"][0].untyped_storage().nbytes()], [12, 16])
        self.assertEqual([made["pair"][0].shape, made["pair"][1], made["none"].shape], [(2, 2), 1, (0,)])
        for one in (made["a"], made["pair"][0]):
            self.assertEqual(_snapshot._spare, [])
            one.share_memory_()
        self.assertEqual(len(_snapshot._spare), 1)
        self.assertTrue(torch.equal(made["a"], state["a"]))
        dcp.save(state, storage_writer=Writer(self.top / "now", step=1), no_dist=True)
        dcp.async_save(state, storage_writer=Writer(self.run_, step=1), no_dist=True).result()
        self.assertTrue(unishard.diff(self.top / "now", self.run_)["equal"])

    def test_distributed_tensors_have_the_state_of_the_call(self):
        self.job("""
            import torch.distributed.checkpoint as dcp
            from torch.distributed.fsdp import fully_shard
            from unishard.dcp import Writer
            from unishard import _snapshot
            group, places = dist.new_group(backend="gloo"), set()
            trained = model(1.0, 9)
            fully_shard(trained)
            for step in range(1, 5):
                saving = dcp.async_save({"model": trained.state_dict()}, storage_writer=Writer(folder / "run", step=step), process_group=group)
                with torch.no_grad():
                    for one in trained.parameters():
                        one.add_(1.0)
                saving.result()
                end = time.monotonic() + 10
                while not _snapshot._spare and time.monotonic() < end:
                    time.sleep(0.001)
                places.update(memory.content.data_ptr() for memory in _snapshot._spare)
            assert len(places) == 1, places
        """, world=2)
        for step in range(1, 5):
            self.holds(float(step), tag=f"global_step{step}")

    def test_an_error_reaches_the_future(self):
        dcp.save({"w": torch.ones(3)}, storage_writer=Writer(self.run_, step=1))
        with unittest.mock.patch.object(_parts, "_write", side_effect=unishard.Error("no space", "the disk is full")):
            saving = dcp.async_save({"w": torch.ones(3)}, storage_writer=Writer(self.run_, step=2), no_dist=True)
            with self.assertRaisesRegex(dcp.api.CheckpointException, "the disk is full"):
                saving.result()
        dcp.async_save({"w": torch.ones(3)}, storage_writer=Writer(self.run_, step=3), no_dist=True).result()
        self.assertEqual((self.latest(), self.tags()), ("global_step3", ["global_step1", "global_step3"]))

    def test_a_forked_process_leaves_the_save_alone(self):
        self.job("""
            import torch.distributed.checkpoint as dcp
            from unishard.dcp import Writer
            class Slow(Writer):
                def write_data(self, plan, planner):
                    writing.set()
                    assert may_write.wait(60)
                    return super().write_data(plan, planner)
            saving = dcp.async_save({"w": torch.ones(3)}, storage_writer=Slow(folder / "run", step=1), no_dist=True)
            assert writing.wait(60)
            child = os.fork()
            if child == 0:
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            may_write.set()
            saving.result()
        """)
        self.holds(1.0)

    def test_ranks_save_with_a_group_of_their_own(self):
        self.job("""
            import torch.distributed.checkpoint as dcp
            from unishard.dcp import Reader, Writer
            group, saving = dist.new_group(backend="gloo"), None
            for step in range(1, 5):
                state = {"w": torch.full((1000,), float(step)), "epoch": step}
                if saving is not None:
                    saving.result()
                saving = dcp.async_save(state, storage_writer=Writer(folder / "run", step=step, keep_last=2), process_group=group)
                state["w"].zero_()
                for number in range(50):
                    total = torch.tensor([float(number + rank)])
                    dist.all_reduce(total)
                    assert total.item() == 2 * number + 1, total
            saving.result()
        """, world=2)
        self.assertEqual((self.latest(), self.tags()), ("global_step4", ["global_step3", "global_step4"]))
        self.holds(4.0)


if __name__ == "__main__":
    unittest.main()
