"""What a native checkpoint holds, read by stock HDF5 (read_with_h5py.py) and none of UniShard's own code."""
import glob
import importlib
import json
import multiprocessing.connection
import os
import pathlib
import subprocess
import sys
import tempfile

import processes  # before numpy, which reads the environment
import numpy as np
from free_port import free_port

READER = pathlib.Path(__file__).resolve().parent.parent / "read_with_h5py.py"
BYTE_TYPES = {"bfloat16": "<u2", "float16": "<u2"}


def read(tag_folder):
    """({(fqn, state): array}, manifest); 16-bit floats as their bits."""
    with tempfile.TemporaryDirectory() as scratch:
        packed = os.path.join(scratch, "all.npz")
        subprocess.run([sys.executable, str(READER), str(tag_folder), "--npz", packed], check=True, stdout=subprocess.DEVNULL)
        arrays = np.load(packed)
        tensors = {tuple(name.rsplit("/", 1)): arrays[name] for name in arrays.files}
    manifest = json.loads((pathlib.Path(tag_folder) / "manifest.json").read_text())
    return tensors, manifest


def same_bits(torch_tensor, array):
    """Bit equality of a torch tensor with an array of read()."""
    import torch
    plain = torch_tensor.detach().contiguous().cpu()
    if plain.dtype in (torch.bfloat16, torch.float16):
        plain = plain.view(torch.int16)
    found = plain.numpy()
    return found.shape == array.shape and found.tobytes() == array.tobytes()


def run(*command, **options):
    """Runs a program; its output is shown when it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def require(*modules):
    """Ends the program with status 77 where a module is not installed."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as missing:
            print(f"skipped: {missing}")
            sys.exit(77)


def launch(work, job_file, world_size, environment={}, modules=processes.GPT2):
    """Runs `work(job_file)` on every rank of one machine, with `modules` imported. Returns [(status, output)] by rank, and the port."""
    port, started = free_port(), []
    with tempfile.TemporaryDirectory() as outputs:
        files = [pathlib.Path(outputs, str(rank)) for rank in range(world_size)]
        for rank, file in enumerate(files):
            own = dict(environment, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size),
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
            started.append(processes.start(work, [str(job_file)], own, modules, file))
        while any(process.exitcode is None for process in started):
            multiprocessing.connection.wait([process.sentinel for process in started if process.exitcode is None])
            if any(process.exitcode for process in started):  # the others wait for it, some for half an hour
                for process in started:
                    process.join(5)
                    process.kill()
        return [(process.exitcode, file.read_text(errors="replace")) for process, file in zip(started, files)], port


def launch_deepspeed(work, job, world_size, folder):
    """launch() of a job in a folder, for programs of UNISHARD_PEERS. Returns whether all ranks succeeded, and what they printed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.json").write_text(json.dumps(job))
    ended, port = launch(work, folder / "job.json", world_size, {"LOCAL_SIZE": str(world_size), "TRANSFORMERS_OFFLINE": "1"})
    for left in glob.glob(f"/dev/shm/deepspeed_allreduce_buffer_*_{port}_*"):  # DeepSpeed leaves 66 MiB a rank there
        os.remove(left)
    return not any(status for status, _ in ended), "".join(f"--- rank {rank}\n{output}" for rank, (_, output) in enumerate(ended))


def precision(dtype):
    """The section of DeepSpeed's configuration for fp32, bf16 or fp16. The loss scale of fp16 grows in the first steps."""
    sections = {"bf16": {"enabled": True}, "fp16": {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 2}}
    return {dtype: sections[dtype]} if dtype in sections else {}


def train(build, folder, steps, dtype, world_size=2, stage=2, resume=None, losses=None, more={}):
    """A short run of train_gpt without dropout whose samples are all the same, so that a peer that knows one sample knows
    every batch. Returns the sample: context + 1 tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    sample = [97 + (7 * i * i + 3 * i) % 26 for i in range(32)]
    (folder / "data.txt").write_bytes(bytes(sample) * 100)
    config = {"train_batch_size": 2, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage},
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}}}
    config.update(precision(dtype))
    config.update(more)
    (folder / "config.json").write_text(json.dumps(config))
    command = [build / "bin/unishard", "launch", "-n", world_size, "--", build / "bin/train_gpt", "--config", folder / "config.json",
               "--data", folder / "data.txt", "--model", "nano", "--steps", steps, "--save", folder / "run"]
    run(*command, *(["--resume", resume] if resume else []), *(["--losses", losses] if losses else []))
    return sample + sample[:1]
