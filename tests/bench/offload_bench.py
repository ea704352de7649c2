#!/usr/bin/env python3
"""Measures steps of train_gpt whose state is in files beside what bounds them: the computation, and the bytes through the disk.

  offload_bench.py [--peers] [--build build/release] [--model wide] [--world-size 2] [--steps 8] [--rounds 3] [--folder DIR] [--json FILE]

A round measures one after the other: fio (reads and writes at once, past the page cache, 1 MiB blocks, 8 at a time: DeepSpeed's defaults),
train_gpt at stage 3 in bf16 with its state in memory, with optimizer and parameters in files, and the same with updates after the
backward pass ("super_offload": false). Ratios are of one round; the script prints their medians and ranges. "limit" is the larger of the
step in memory and (bytes of a step) / (fio's rate). With --peers, DeepSpeed takes its turn too, beside train_gpt with the optimizer alone in
files: on the CPU, DeepSpeed 0.19.8 ends with an assertion where parameters are in files. Its aio operation needs libaio-dev and a compiler.
Bytes of a step are those that the kernel counted for a run, less those of a run of one step.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

MODELS = {"small": (6, 384, 6, 256), "wide": (6, 1024, 8, 64), "gpt2": (12, 768, 12, 512)}  # layers, width, heads, context
MICRO = 4


def config(world, place, folder):
    nvme = {"device": "nvme", "nvme_path": str(folder)}
    zero = {"stage": 3, "sub_group_size": 1e8}
    if place != "memory":
        zero |= {"offload_optimizer": {**nvme, "buffer_count": 4}, "offload_param": {**nvme, "max_in_cpu": 0}}
    if place == "after":
        zero["offload_optimizer"]["super_offload"] = False
    if place == "optimizer":
        del zero["offload_param"]
    return {"train_batch_size": MICRO * world, "train_micro_batch_size_per_gpu": MICRO, "gradient_clipping": 0.0, "steps_per_print": 1000,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "bf16": {"enabled": True}, "zero_optimization": zero,
            "aio": {"block_size": 1048576, "queue_depth": 8}}


def run(command, **more):
    result = subprocess.run([str(one) for one in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if result.returncode:
        sys.exit(f"{command[0]} failed:\n{result.stdout[-3000:]}")
    return result.stdout


def moved_bytes():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 512 * (used.ru_inblock + used.ru_oublock)


def unishard_run(options, folder, place, steps):
    """Returns the median seconds of a step after the second one, and the bytes that the run has moved."""
    layers, width, heads, context = MODELS[options.model]
    (folder / "ds.json").write_text(json.dumps(config(options.world_size, place, folder / "nvme")))
    losses, program = folder / "losses", options.build / "bin"
    losses.unlink(missing_ok=True)
    before = moved_bytes()
    run([program / "unishard", "launch", "--nproc-per-node", options.world_size, "--", program / "train_gpt", "--config", folder / "ds.json",
         "--data", folder / "data", "--model", "nano", "--layers", layers, "--width", width, "--heads", heads, "--context", context,
         "--vocab-size", 256, "--dropout", 0, "--stage", 3, "--steps", steps, "--losses", losses, "--threads", 1])
    tokens = MICRO * options.world_size * context
    seconds = [tokens / json.loads(line)["tokens_per_s"] for line in losses.read_text().splitlines()]
    return statistics.median(seconds[2:] or seconds), moved_bytes() - before


def fio_rate(options, folder, read_share):
    out = run(["fio", "--name=mixed", f"--directory={folder}", "--size=1G", "--bs=1M", "--iodepth=8", "--ioengine=libaio", "--direct=1", "--rw=rw",
               f"--rwmixread={round(100 * read_share)}", "--runtime=6", "--time_based", "--output-format=json", "--unlink=1"])
    job = json.loads(out[out.index("{"):])["jobs"][0]
    return job["read"]["bw_bytes"] + job["write"]["bw_bytes"]


def deepspeed_worker(model, folder, steps):
    import logging
    import deepspeed
    import torch
    import torch.distributed as dist
    from transformers import GPT2Config, GPT2LMHeadModel
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    layers, width, heads, context = MODELS[model]
    settings = config(dist.get_world_size(), "optimizer", folder)
    settings["zero_optimization"]["offload_optimizer"] |= {"pipeline_read": True, "pipeline_write": True}
    torch.manual_seed(1)
    network = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=context, n_embd=width, n_layer=layers, n_head=heads, resid_pdrop=0,
                                         embd_pdrop=0, attn_pdrop=0, use_cache=False))
    engine = deepspeed.initialize(model=network, model_parameters=network.parameters(), config=settings)[0]
    tokens = torch.randint(256, (MICRO, context))
    times = []
    for _ in range(steps):
        begin = time.monotonic()
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        loss.item()
        times.append(time.monotonic() - begin)
    if dist.get_rank() == 0:
        print(json.dumps({"seconds": times[2:]}))
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads may abort the end of Python


def deepspeed_run(options, folder):
    env = dict(os.environ, DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    out = run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", options.world_size, "--master-port", 29919, __file__, "--worker",
               options.model, folder / "ds_nvme", options.steps], env=env)
    lines = [line for line in out.splitlines() if line.startswith('{"seconds"')]
    if not lines:
        sys.exit(f"DeepSpeed failed:\n{out[-3000:]}")
    return statistics.median(json.loads(lines[0])["seconds"])


def measure(options, folder):
    """Measures one round."""
    row = {place: unishard_run(options, folder, place, options.steps) for place in ("memory", "nvme", "after")}
    one = {place: unishard_run(options, folder, place, 1)[1] for place in ("nvme", "after")}
    bytes_moved = {place: (row[place][1] - one[place]) / (options.steps - 1) for place in one}
    rate = fio_rate(options, folder, 0.58)
    limit = max(row["memory"][0], bytes_moved["nvme"] / rate)
    result = {"memory_s": row["memory"][0], "nvme_s": row["nvme"][0], "after_s": row["after"][0], "step_bytes": bytes_moved["nvme"],
              "after_bytes": bytes_moved["after"], "fio_bytes_per_s": rate, "disk_s": bytes_moved["nvme"] / rate,
              "to_limit": row["nvme"][0] / limit, "after_to_limit": row["after"][0] / limit, "ahead_to_after": row["nvme"][0] / row["after"][0]}
    if options.peers:
        result["optimizer_s"] = unishard_run(options, folder, "optimizer", options.steps)[0]
        result["deepspeed_s"] = deepspeed_run(options, folder)
        result["to_deepspeed"] = result["optimizer_s"] / result["deepspeed_s"]
    print(json.dumps({name: round(value, 3) for name, value in result.items()}), flush=True)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--model", choices=MODELS, default="wide")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--worker", nargs=3)
    options = parser.parse_args()
    if options.worker:
        model, folder, steps = options.worker
        deepspeed_worker(model, folder, int(steps))
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = pathlib.Path(name)
        (folder / "data").write_bytes(os.urandom(1 << 20))
        (folder / "nvme").mkdir()
        rounds = [measure(options, folder) for _ in range(options.rounds)]
    for name in rounds[0]:
        values = sorted(one[name] for one in rounds)
        print(f"{name:<16} {statistics.median(values):14.3f} ({values[0]:.3f} to {values[-1]:.3f})")
    if options.json:
        options.json.write_text(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
