#!/usr/bin/env python3
"""Measures steps of train_gpt beside DeepSpeed's and beside the computation alone, of one model, batch and number of threads, in one run.

  train_bench.py [--peers] [--build build/release] [--world-sizes 2] [--stages 0,2,3] [--dtypes float32,bfloat16] [--model small] [--steps 12]
                 [--accumulation 1] [--sums default] [--device cpu] [--json FILE]

Models: small (10.8 M parameters: 6 layers, width 384, context 256) and gpt2 (86 M: 12 layers, width 768, context 512). Each rank has one
thread and, unless --accumulation says otherwise, one micro-batch of 4 samples. --sums canonical,fast has a row for each value of
"canonical_order"; default leaves the key out. A row has the median of the steps after the first two, in seconds, and the peak resident
memory of rank 0. "compute" is train_bench: the same passes in LibTorch alone, one process for each rank, at the same time. DeepSpeed
(--peers: run it with a Python that has deepspeed and transformers) computes with that Python's torch, UniShard with the LibTorch
it is built with; the ratio of both includes that difference. "hidden" is the share of communication during which this rank computes,
from train_gpt's trace. With --device cuda there is no computation alone to compare with.
"""
import argparse
import itertools
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

MODELS = {"small": (6, 384, 6, 256), "gpt2": (12, 768, 12, 512)}
MICRO = 4
SUMS = {"default": {}, "canonical": {"canonical_order": True}, "fast": {"canonical_order": False}}


def ds_config(world, stage, dtype, accumulation=1):
    return {"train_batch_size": MICRO * world * accumulation, "train_micro_batch_size_per_gpu": MICRO,
            "gradient_clipping": 1.0, "steps_per_print": 1000,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
            "bf16": {"enabled": dtype == "bfloat16"}, "zero_optimization": {"stage": stage}}


def worker(model, stage, dtype, steps, accumulation):
    """One rank of DeepSpeed: prints the seconds of each step and the peak memory in MiB."""
    import logging
    import deepspeed
    import torch
    import torch.distributed as dist
    from transformers import GPT2Config, GPT2LMHeadModel
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    layers, width, heads, context = MODELS[model]
    torch.manual_seed(1)
    network = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=context, n_embd=width, n_layer=layers, n_head=heads, resid_pdrop=0,
                                         embd_pdrop=0, attn_pdrop=0, use_cache=False))
    engine = deepspeed.initialize(model=network, model_parameters=network.parameters(),
                                  config=ds_config(dist.get_world_size(), stage, dtype, accumulation))[0]
    tokens = torch.randint(256, (MICRO, context))
    times = []
    for _ in range(steps):
        begin = time.monotonic()
        for _ in range(accumulation):
            loss = engine(input_ids=tokens, labels=tokens).loss
            engine.backward(loss)
            engine.step()
        loss.item()
        times.append(time.monotonic() - begin)
    if dist.get_rank() == 0:
        print(json.dumps({"seconds": times[2:], "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads may abort the end of Python


def deepspeed_steps(options, model, world, stage, dtype):
    env = dict(os.environ, DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", world, "--master-port", 29917, __file__, "--worker", model,
               stage, dtype, options.steps, options.accumulation]
    result = subprocess.run([str(one) for one in command], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [line for line in result.stdout.splitlines() if line.startswith('{"seconds"')]
    if not lines:
        sys.exit(f"DeepSpeed failed:\n{result.stderr[-2000:]}")
    return json.loads(lines[0])


def unishard_steps(options, folder, model, world, stage, dtype, order):
    layers, width, heads, context = MODELS[model]
    config = ds_config(world, stage, dtype, options.accumulation) | SUMS[order]
    (folder / "ds.json").write_text(json.dumps(config))
    (folder / "data").write_bytes(os.urandom(1 << 20))
    losses, trace = folder / "losses", folder / "trace"
    losses.unlink(missing_ok=True)
    program = options.build / "bin"
    command = [program / "unishard", "launch", "--nproc-per-node", world, "--", program / "train_gpt", "--config", folder / "ds.json", "--data",
               folder / "data", "--model", "nano", "--layers", layers, "--width", width, "--heads", heads, "--context", context, "--vocab-size", 256,
               "--dropout", 0, "--stage", stage, "--steps", options.steps, "--losses", losses, "--trace", trace, "--report-memory", "--device", options.device]
    result = subprocess.run([str(one) for one in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        sys.exit(f"train_gpt failed:\n{result.stdout[-2000:]}")
    tokens = MICRO * world * context * options.accumulation
    seconds = [tokens / json.loads(line)["tokens_per_s"] for line in losses.read_text().splitlines()]
    memory = next(line for line in result.stdout.splitlines() if "memory rank 0:" in line)
    return {"seconds": seconds[2:], "memory": float(memory.split("(peak")[-1].split(")")[0]) * 1e6 / 2**20, "hidden": hidden_share(trace)}


def hidden_share(path):
    """Returns the share of rank 0's communication that lies within spans of its computation."""
    events = [one for one in json.loads(path.read_text())["traceEvents"] if one["pid"] == 0]
    spans = {kind: sorted((one["ts"], one["ts"] + one["dur"]) for one in events if one["tid"] == kind)
             for kind in ("compute", "communication")}
    total = sum(end - begin for begin, end in spans["communication"])
    inside = sum(max(0, min(end, last) - max(begin, first)) for begin, end in spans["communication"] for first, last in merged(spans["compute"]))
    return inside / total if total else 1.0


def merged(spans):
    result = []
    for begin, end in spans:
        if result and begin <= result[-1][1]:
            result[-1][1] = max(result[-1][1], end)
        else:
            result.append([begin, end])
    return result


def compute_steps(options, model, world, dtype):
    command = [str(options.build / "tests" / "train_bench"), *map(str, MODELS[model]), str(MICRO), str(options.steps * options.accumulation), dtype]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ, OMP_NUM_THREADS="1")) for _ in range(world)]
    outputs = [rank.communicate()[0].split() for rank in ranks]
    passes = [max(map(float, one)) for one in zip(*outputs)]  # one lasts as long as that of the slowest rank
    return [options.accumulation * one for one in passes]


def measure(options, folder, world, dtype, stage, order):
    """Measures and prints a row."""
    ours = unishard_steps(options, folder, options.model, world, stage, dtype, order)
    step = statistics.median(ours["seconds"])
    row = {"model": options.model, "device": options.device, "world_size": world, "stage": stage, "dtype": dtype, "sum": order,
           "accumulation": options.accumulation, "unishard_s": step, "hidden": ours["hidden"], "unishard_mib": ours["memory"]}
    compute = " " * 16
    if options.device == "cpu":
        alone = statistics.median(compute_steps(options, options.model, world, dtype))
        row |= {"compute_s": alone, "to_compute": step / alone}
        compute = f"{alone:9.4f} {step / alone:6.2f}"
    text = f"{world:2} {stage:5} {dtype:>9} {order:>9}  {step:9.4f} {compute} {ours['hidden']:6.2f} {ours['memory']:6.0f}"
    if options.peers:
        theirs = deepspeed_steps(options, options.model, world, stage, dtype)
        other = statistics.median(theirs["seconds"])
        row |= {"deepspeed_s": other, "to_deepspeed": step / other, "deepspeed_mib": theirs["memory"]}
        text += f"   {other:9.4f} {step / other:6.2f} {theirs['memory']:6.0f}"
    print(text, flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--world-sizes", default="2")
    parser.add_argument("--stages", default="0,2,3")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--sums", default="default")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--worker", nargs=5)
    options = parser.parse_args()
    if options.worker:
        model, stage, dtype, steps, accumulation = options.worker
        worker(model, int(stage), dtype, int(steps), int(accumulation))
    rows = []
    print(f"{'W':>2} {'stage':>5} {'dtype':>9} {'sum':>9}  {'unishard':>9} {'compute':>9} {'ratio':>6} {'hidden':>6} {'MiB':>6}   "
          f"{'deepspeed':>9} {'ratio':>6} {'MiB':>6}")
    cases = itertools.product(map(int, options.world_sizes.split(",")), options.dtypes.split(","), map(int, options.stages.split(",")),
                              options.sums.split(","))
    with tempfile.TemporaryDirectory() as name:
        for world, dtype, stage, order in cases:
            rows.append(measure(options, pathlib.Path(name), world, dtype, stage, order))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
