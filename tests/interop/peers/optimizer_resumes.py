#!/usr/bin/env python3
"""Optimizers beside Adam: runs of train_gpt continue under the real DeepSpeed, and runs of DeepSpeed in train_gpt.

  optimizer_resumes.py BUILD [--optimizers muon sgd adagrad lion] [--world-sizes 2 3] [--stages 1 2 3] [--steps 3]

  ours    a run of train_gpt, resharded to each size and stage, in fp32 and bf16: DeepSpeed loads it, and what it saves then is equal to it; its
          next losses are those of train_gpt but for rounding
  theirs  a run of DeepSpeed at each size, stage and kind (offload, BF16_Optimizer): through a native checkpoint and back, DeepSpeed continues with
          the bits of its undisturbed run, and train_gpt with its losses but for rounding
Adagrad and Lion are DeepSpeed's own of the CPU, with offload_optimizer; its Lamb has none for the CPU. --stages is for all but Muon.
Exit status: 0 all equal, 1 something differs, 77 something is not installed.
"""
import argparse
import glob
import json
import math
import os
import pathlib
import sys
import tempfile

import deepspeed_resumes
import truth

OPTIMIZERS = {
    "muon": {"type": "Muon", "params": {"muon_lr": 0.01, "adam_lr": 0.002, "momentum": 0.9, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
    "sgd": {"type": "SGD", "params": {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.1}},
    "adagrad": {"type": "Adagrad", "params": {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.1}},
    "lion": {"type": "Lion", "params": {"lr": 1e-3, "betas": [0.9, 0.99], "weight_decay": 0.1}},
}
TAKEN = 4  # steps of a run before it is saved
CPU = {"device": "cpu"}
# At stage 0, and by BF16_Optimizer, DeepSpeed clips gradients before they are made orthogonal, and behind that at the other stages.
UNCLIPPED = {"gradient_clipping": 0.0}
# <optimizer>-<precision>-<stage>[-<more>]: stage, precision, settings of zero_optimization, other settings
KINDS = {f"muon-{dtype}-{stage}": (stage, dtype, {}, {} if stage else UNCLIPPED) for dtype in ("fp32", "bf16") for stage in range(4)}
PLAIN = list(KINDS)  # of Muon, what is resharded from a run of train_gpt
KINDS.update({"muon-fp32-2-offload": (2, "fp32", {"offload_optimizer": CPU}, {}), "muon-fp32-3-offload": (3, "fp32", {"offload_optimizer": CPU}, {}),
              "muon-bf16-1-class": (1, "bf16", {}, {**UNCLIPPED, "data_types": {"grad_accum_dtype": "fp32"}}),
              "muon-fp32-3-groups": (3, "fp32", {"sub_group_size": 3000}, {}),
              "muon-fp32-2-round-robin": (2, "fp32", {"round_robin_gradients": True}, {}),
              "muon-fp32-2-aligned": (2, "fp32", {"parameter_alignment": True}, {})})
for name in ("sgd", "adagrad", "lion"):
    offload = {} if name == "sgd" else {"offload_optimizer": CPU}
    KINDS.update({f"{name}-{dtype}-{stage}": (stage, dtype, offload, {"zero_allow_untested_optimizer": True})
                  for dtype in ("fp32", "bf16") for stage in (1, 2, 3)})
# How far losses are apart after rounding. DeepSpeed's momenta of bf16 runs are bfloat16.
NEAR = {"fp32": 2e-3, "bf16": 0.1}


# ---- one rank --------------------------------------------------------------------------------------------------------

def configuration(kind):
    stage, dtype, zero, others = KINDS[kind]
    world = int(os.environ.get("WORLD_SIZE", 1))
    return {"train_batch_size": world, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "steps_per_print": 1 << 30,
            "zero_optimization": {"stage": stage, **({"reduce_scatter": False} if kind.startswith("muon") else {}), **zero},
            "optimizer": OPTIMIZERS[kind.split("-")[0]], **truth.precision(dtype), **others}


def make_engine(kind, manifest):
    import deepspeed
    import torch
    torch.manual_seed(5)
    model = deepspeed_resumes.make_model(manifest)
    groups = [{"params": [p for p in model.parameters() if p.ndim >= 2]},
              {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]
    return deepspeed.initialize(model=model, model_parameters=groups, config=configuration(kind))[0]


def continued(job, kind, folder, manifest):
    """The next losses of an engine that loads a folder, and where it has saved what it loaded."""
    engine = make_engine(kind, manifest)
    path, _ = engine.load_checkpoint(folder)
    if path is None:
        raise SystemExit(f"{folder} was not loaded")
    engine.save_checkpoint(folder + "-again", tag="t")
    return deepspeed_resumes.steps(engine, job["window"], job["steps"])


def work(job_file):
    import torch
    torch.set_num_threads(1)
    import deepspeed
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    job = json.loads(pathlib.Path(job_file).read_text())
    for kind in job["kinds"]:
        manifest = json.loads(pathlib.Path(job["manifest"]).read_text())
        folder = os.path.join(job["folder"], kind)
        if job["do"] == "load":
            result = continued(job, kind, folder, manifest)
        else:
            engine = make_engine(kind, manifest)
            deepspeed_resumes.steps(engine, job["window"], TAKEN)
            engine.save_checkpoint(folder, tag="t")
            result = deepspeed_resumes.steps(engine, job["window"], job["steps"])
        if os.environ["RANK"] == "0":
            print("RESULT " + json.dumps([kind, result]), flush=True)
    torch.distributed.barrier()


# ---- all of them -----------------------------------------------------------------------------------------------------

def launch(world_size, job):
    """{kind: losses}"""
    job_file = pathlib.Path(job["folder"]) / "job.json"
    job_file.parent.mkdir(parents=True, exist_ok=True)
    job_file.write_text(json.dumps(job))
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # DeepSpeed builds with the ninja there
    ranks, port = truth.launch(work, job_file, world_size, {"LOCAL_SIZE": str(world_size), "PATH": path})
    for left in glob.glob(f"/dev/shm/deepspeed_allreduce_buffer_*_{port}_*"):
        os.remove(left)
    failed = [f"rank {i}:\n{output[-3000:]}" for i, (status, output) in enumerate(ranks) if status != 0]
    if failed:
        raise SystemExit(f"{len(failed)} of {world_size} ranks failed:\n" + "\n".join(failed))
    return dict(json.loads(line[7:]) for line in ranks[0][1].splitlines() if line.startswith("RESULT "))


class Judge:
    def __init__(self, unishard):
        self.unishard, self.failed = unishard, 0

    def same_state(self, a, b):
        return truth.subprocess.run([self.unishard, "diff", a, b], capture_output=True, check=False).returncode == 0

    def row(self, name, found):
        self.failed += not all(value is True or isinstance(value, str) for value in found.values())
        print(f"{name:28} " + ", ".join(f"{key} {value if isinstance(value, str) else 'equal' if value else 'DIFFERS'}" for key, value in found.items()),
              flush=True)


def distance(a, b, dtype):
    apart = max(abs(x - y) for x, y in zip(a, b, strict=True)) if len(a) == len(b) else math.inf
    return f"{apart:.1e}" if apart < NEAR[dtype] else False


def try_ours(build, judge, scratch, optimizer, kinds, worlds, taken_on):
    """Returns the window of tokens and the manifest of a run, which describes the model."""
    native, own, more = {}, {}, {"optimizer": OPTIMIZERS[optimizer]}
    for dtype in ("fp32", "bf16"):
        run = scratch / f"{optimizer}-{dtype}"
        window = truth.train(build, run, TAKEN, dtype, more=more)
        native[dtype] = str(next((run / "run").glob("global_step*")))
        for clips in {KINDS[kind][0] > 0 for kind in kinds}:
            log = scratch / f"{optimizer}-{dtype}-{clips}.jsonl"
            truth.train(build, scratch / f"{optimizer}-{dtype}-{clips}-on", TAKEN + taken_on, dtype, resume=native[dtype] + "/", losses=log,
                        more={**more, **({} if clips else UNCLIPPED)})
            own[dtype, clips] = deepspeed_resumes.read_losses(log)
    base = {"window": window, "steps": taken_on, "manifest": native["fp32"] + "/manifest.json"}
    for world in worlds:
        folder = scratch / f"ours-{optimizer}-{world}"
        for kind in kinds:
            stage, dtype, _, _ = KINDS[kind]
            truth.run(judge.unishard, "reshard", native[dtype], folder / kind, "--to", "deepspeed", "-w", world, "-s", stage)
        for kind, losses in launch(world, {**base, "do": "load", "kinds": kinds, "folder": str(folder)}).items():
            stage, dtype, _, _ = KINDS[kind]
            judge.row(f"ours {kind} on {world}", {"saved again": judge.same_state(native[dtype], folder / f"{kind}-again"),
                                                  "losses": distance(losses, own[dtype, stage > 0], dtype)})
    return base


def try_theirs(build, judge, scratch, base, kinds, world):
    optimizer = kinds[0].split("-")[0]
    theirs, back = scratch / f"theirs-{optimizer}-{world}", scratch / f"back-{optimizer}-{world}"
    undisturbed = launch(world, {**base, "do": "train", "kinds": kinds, "folder": str(theirs)})
    for kind in kinds:
        truth.run(judge.unishard, "convert", theirs / kind, theirs / f"{kind}-native", "--to", "native")
        truth.run(judge.unishard, "convert", theirs / f"{kind}-native", back / kind, "--to", "deepspeed")
    returned = launch(world, {**base, "do": "load", "kinds": kinds, "folder": str(back)})
    for kind in kinds:
        _, dtype, _, others = KINDS[kind]
        log = scratch / f"{kind}-{world}.jsonl"
        counted = int(kind.startswith("muon-bf16-0"))  # DeepSpeed's optimizer counts a step more there
        truth.train(build, scratch / f"{kind}-{world}-on", TAKEN + counted + base["steps"], dtype, world_size=1, resume=str(theirs / kind) + "/",
                    losses=log,
                    more={"optimizer": OPTIMIZERS[optimizer], **(UNCLIPPED if "gradient_clipping" in others else {})})
        # torch loads the bfloat16 momenta of DeepSpeed's Muon at stages 1 to 3 as float32.
        is_widened = kind in ("muon-bf16-1", "muon-bf16-2", "muon-bf16-3")
        judge.row(f"theirs {kind} on {world}",
                  {"returns": "as float32" if is_widened else judge.same_state(theirs / kind, back / f"{kind}-again"),
                   "losses": returned[kind] == undisturbed[kind],
                   "in train_gpt": distance(deepspeed_resumes.read_losses(log), undisturbed[kind], dtype)})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--optimizers", nargs="+", choices=list(OPTIMIZERS), default=list(OPTIMIZERS))
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    truth.require("deepspeed", "transformers")
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    build = args.build.resolve()
    judge = Judge(build / "bin/unishard")
    with tempfile.TemporaryDirectory() as scratch:
        for optimizer in args.optimizers:
            all_kinds = [kind for kind, (stage, *_) in KINDS.items() if kind.startswith(optimizer + "-") and (optimizer == "muon" or stage in args.stages)]
            ours = PLAIN if optimizer == "muon" else all_kinds
            base = try_ours(build, judge, pathlib.Path(scratch), optimizer, ours, args.world_sizes, args.steps)
            for world in args.world_sizes:
                try_theirs(build, judge, pathlib.Path(scratch), base, all_kinds, world)
    sys.exit(1 if judge.failed else 0)


if __name__ == "__main__":
    main()
