#!/usr/bin/env python3
"""A run of train_gpt goes on under the real DeepSpeed, at every world size and stage.

  deepspeed_resumes.py BUILD [--world-sizes 1 2 3 4 5] [--stages 0 1 2 3] [--dtypes fp32 bf16 fp16] [--steps 3]

The run in bf16 keeps its state in files (offload to nvme). For every combination `unishard reshard --to deepspeed` rewrites the native checkpoint,
engines of that size and stage load it, and then
  state   fp32, exp_avg and exp_avg_sq of every parameter must have the bits of the native checkpoint, which stock HDF5 read
  losses  the next losses must have the bits of an engine of the same size and stage into whose memory that state was put
          through DeepSpeed's own accessors, and no checkpoint; beside them, how far they are from what train_gpt itself
          computes when it goes on. In fp16 they are far (0.05) at stage 0, where DeepSpeed itself, without any checkpoint, takes
          another way than at its stages 1 to 3
Exit status: 0 all equal, 1 something differs, 77 something is not installed.
"""
import argparse
import glob
import json
import os
import pathlib
import sys
import tempfile

import truth

STATES = ("fp32", "exp_avg", "exp_avg_sq")
LEARNING_RATE = 1e-3


# ---- one rank --------------------------------------------------------------------------------------------------------

def make_model(manifest):
    """A GPT-2 of transformers with the names of train_gpt, returning the loss of one window."""
    import torch
    from transformers import GPT2Config, GPT2Model
    shapes = {t["fqn"]: t["shape"] for t in manifest["tensors"]}
    vocabulary, width = shapes["wte.weight"]
    layers = 1 + max(int(name.split(".")[1]) for name in shapes if name.startswith("h."))
    config = GPT2Config(vocab_size=vocabulary, n_positions=shapes["wpe.weight"][0], n_embd=width, n_layer=layers, n_head=2,
                        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, attn_implementation="eager")

    class Model(GPT2Model):
        def __init__(self, config):
            super().__init__(config)
            self.lm_head = torch.nn.Linear(width, vocabulary, bias=False)
            self.lm_head.weight = self.wte.weight

        def forward(self, window):
            hidden = super().forward(window[:, :-1]).last_hidden_state
            logits = torch.nn.functional.linear(hidden, self.wte.weight).float()
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())

    return Model(config)


def make_engine(manifest, stage, dtype):
    import deepspeed
    import torch
    torch.manual_seed(5)
    model = make_model(manifest)
    group_of = {t["fqn"]: t["group"] for t in manifest["tensors"] if t["state"] == "fp32"}
    groups = [{"params": [p for n, p in model.named_parameters() if group_of[n] == g], "weight_decay": group["weight_decay"]}
              for g, group in enumerate(manifest["groups"])]
    world = int(os.environ["WORLD_SIZE"])
    config = {"train_batch_size": world, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage},
              "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE, "betas": [0.9, 0.95], "eps": 1e-8, "torch_adam": True}},
              "zero_allow_untested_optimizer": True, "steps_per_print": 1 << 30, **truth.precision(dtype)}
    return deepspeed.initialize(model=model, model_parameters=groups, config=config)[0]


def steps(engine, window, count):
    import torch
    batch = torch.tensor([window])
    losses = []
    for _ in range(count):
        loss = engine(batch)
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.detach()))
    return losses


def inner(engine):
    return getattr(engine.optimizer, "optimizer", engine.optimizer)


def masters_of_stage_0(engine):
    """{id(parameter): fp32 master} where DeepSpeed's accessors know none."""
    wrapped = engine.optimizer
    if hasattr(wrapped, "fp32_groups"):
        return {id(p): m for lows, highs in zip(wrapped.fp16_groups, wrapped.fp32_groups) for p, m in zip(lows, highs)}
    return {id(p): p for group in wrapped.param_groups for p in group["params"]}


def link_states(engine):
    """Makes the accessors of stages 1 and 2 see optimizer states that came into being after the engine's start."""
    if hasattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()


def get_states(engine):
    """{(fqn, state): full tensor} of a live engine."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    found = {}
    link_states(engine)
    for name, p in engine.module.named_parameters():
        if hasattr(p, "ds_id") or hasattr(p, "_hp_mapping"):
            found[name, "fp32"] = safe_get_full_fp32_param(p).reshape(getattr(p, "ds_shape", p.shape))
            for state in STATES[1:]:
                found[name, state] = safe_get_full_optimizer_state(p, state).reshape(getattr(p, "ds_shape", p.shape))
        else:
            master = masters_of_stage_0(engine)[id(p)]
            found[name, "fp32"] = master.reshape(p.shape)
            for state in STATES[1:]:
                found[name, state] = inner(engine).state[master][state].reshape(p.shape)
    return found


def own_part(flat):
    """This rank's part of a parameter at stage 3: as many equal parts as there are ranks, zeros behind the end."""
    import torch
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    size = -(-flat.numel() // world)
    return torch.cat([flat, torch.zeros(world * size - flat.numel())])[rank * size:(rank + 1) * size]


def put_sharded(p, values):
    """At stage 3, part by part: the accessors of whole parameters fail where the last rank's part is short."""
    from deepspeed.utils import safe_set_local_fp32_param, safe_set_local_optimizer_state
    safe_set_local_fp32_param(p, own_part(values["fp32"].reshape(-1)))
    for state in STATES[1:]:
        safe_set_local_optimizer_state(p, own_part(values[state].reshape(-1)), state)
    p.ds_tensor.data.copy_(own_part(values["fp32"].reshape(-1)).to(p.ds_tensor.dtype))
    if p.data.numel() == p.ds_numel:  # a small one, that stays gathered
        p.data.copy_(values["fp32"].reshape(p.data.shape).to(p.dtype))


def put_whole(engine, p, values):
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state
    if hasattr(p, "_hp_mapping"):
        safe_set_full_fp32_param(p, values["fp32"])
        for state in STATES[1:]:
            safe_set_full_optimizer_state(p, values[state], state)
    else:
        master = masters_of_stage_0(engine)[id(p)]
        master.data.copy_(values["fp32"])
        for state in STATES[1:]:
            inner(engine).state[master][state].copy_(values[state])
    p.data.copy_(values["fp32"].to(p.dtype))


def scaler_of(engine):
    """The object whose fields are the loss scale of fp16 and what decides of it."""
    return getattr(engine.optimizer, "loss_scale_config", getattr(engine.optimizer, "loss_scaler", None))


def put_states(engine, tensors, manifest):
    """Without any checkpoint. Pre: the engine made a step, so that all of its states exist."""
    import torch
    link_states(engine)
    for name, p in engine.module.named_parameters():
        values = {state: torch.from_numpy(tensors[name, state].copy()) for state in STATES}
        if hasattr(p, "ds_id"):
            put_sharded(p, values)
        else:
            put_whole(engine, p, values)
    for state in inner(engine).state.values():
        state["step"] = torch.tensor(float(manifest["step"])) if torch.is_tensor(state["step"]) else manifest["step"]
    for live, saved in zip(inner(engine).param_groups, manifest["groups"]):
        live["lr"] = saved["lr"]
    scaler = scaler_of(engine)
    for field, value in (manifest.get("loss_scaler") or {}).items():
        if hasattr(scaler, field) and isinstance(value, (int, float)):
            setattr(scaler, field, value)


def work(job_file):
    import torch
    torch.set_num_threads(1)
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    get_accelerator().is_fp16_supported = lambda: True  # torch computes fp16 on any CPU; DeepSpeed asks oneDNN only
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    job = json.loads(pathlib.Path(job_file).read_text())
    for dtype in job["dtypes"]:
        tensors, manifest = truth.read(job["native"][dtype])
        for stage in job["stages"]:
            engine = make_engine(manifest, stage, dtype)
            path, _ = engine.load_checkpoint(os.path.join(job["folder"], f"{dtype}-{stage}"))
            found = get_states(engine)
            wrong = [f"{n}|{s}" for (n, s), value in found.items() if not truth.same_bits(value, tensors[n, s])]
            saved = manifest.get("loss_scaler")
            wrong += ["the loss scale"] if saved and scaler_of(engine).cur_scale != saved["cur_scale"] else []
            losses = steps(engine, job["window"], job["steps"])
            reference = make_engine(manifest, stage, dtype)
            steps(reference, job["window"], 1)
            put_states(reference, tensors, manifest)
            expected = steps(reference, job["window"], job["steps"])
            if os.environ["RANK"] == "0":
                print("RESULT " + json.dumps({"dtype": dtype, "stage": stage, "loaded": path is not None, "states": len(found),
                                              "wrong": wrong, "losses": losses, "expected": expected}), flush=True)
    torch.distributed.barrier()


# ---- all of them -----------------------------------------------------------------------------------------------------

def launch(world_size, job_file):
    """The output of rank 0; ends the program when a rank fails."""
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # DeepSpeed builds with the ninja there
    ranks, port = truth.launch(work, job_file, world_size, {"LOCAL_SIZE": str(world_size), "PATH": path})
    for left in glob.glob(f"/dev/shm/deepspeed_allreduce_buffer_*_{port}_*"):  # DeepSpeed leaves 66 MiB a rank there
        os.remove(left)
    failed = [f"rank {i}:\n{output[-2000:]}" for i, (status, output) in enumerate(ranks) if status != 0]
    if failed:
        raise SystemExit(f"{len(failed)} of {world_size} ranks failed:\n" + "\n".join(failed))
    return ranks[0][1]


def judge(result, world_size, own):
    """Prints one row; returns whether everything is as it must be."""
    difference = max(abs(a - b) for a, b in zip(result["losses"], result["expected"]))
    from_ours = max(abs(a - b) for a, b in zip(result["losses"], own))
    good = result["loaded"] and not result["wrong"] and difference == 0.0
    print(f"{result['dtype']} {world_size:>3} {result['stage']:>5} {result['states'] - len(result['wrong']):>5} of {result['states']:<5} "
          f"{difference:>15.3g} {from_ours:>15.3g}  {'accepted' if good else 'DIFFERS ' + ', '.join(result['wrong'][:3])}", flush=True)
    return good


def read_losses(path):
    return [float.fromhex(json.loads(line)["loss"]) for line in path.read_text().splitlines()]


def offloaded(folder):
    """The run in bf16 has its state in files; it goes on in memory."""
    place = {"device": "nvme", "nvme_path": str(folder)}
    return {"zero_optimization": {"stage": 3, "offload_optimizer": place, "offload_param": {**place, "max_in_cpu": 0}}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16", "fp16"], choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    truth.require("deepspeed", "transformers")
    build, failed = args.build.resolve(), 0
    with tempfile.TemporaryDirectory() as scratch:
        scratch, native, own = pathlib.Path(scratch), {}, {}
        for dtype in args.dtypes:
            window = truth.train(build, scratch / dtype, 4, dtype, more=offloaded(scratch) if dtype == "bf16" else {})
            native[dtype] = str(next((scratch / dtype / "run").glob("global_step*")))
            truth.train(build, scratch / f"{dtype}-on", 4 + args.steps, dtype, resume=native[dtype] + "/", losses=scratch / f"{dtype}.jsonl")
            own[dtype] = read_losses(scratch / f"{dtype}.jsonl")
        print(f"{'':4} {'W':>3} stage {'states equal':>14} {'loss difference':>15} {'from train_gpt':>15}")
        for world_size in args.world_sizes:
            folder = scratch / f"world{world_size}"
            for dtype in args.dtypes:
                for stage in args.stages:
                    truth.run(build / "bin/unishard", "reshard", native[dtype], folder / f"{dtype}-{stage}", "--to", "deepspeed", "-w",
                              world_size, "-s", stage)
            job = {"dtypes": args.dtypes, "stages": args.stages, "native": native, "folder": str(folder), "window": window, "steps": args.steps}
            (folder / "job.json").write_text(json.dumps(job))
            results = [json.loads(line[7:]) for line in launch(world_size, folder / "job.json").splitlines() if line.startswith("RESULT ")]
            failed += len(args.dtypes) * len(args.stages) - sum(judge(r, world_size, own[r["dtype"]]) for r in results)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
