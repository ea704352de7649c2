#!/usr/bin/env python3
"""The trainer's schedules and optimizers beside DeepSpeed's, over 1,000 steps.

    update_rules.py BUILD [--settings N] [--own]

Schedules: for each of N random settings of each schedule, every rate and every beta is equal to 1 part in 10^12. Optimizers: weights after 1,000
steps with random gradients, as torch.optim computes them, by DeepSpeed's formula for Lamb, by DeepSpeed's MuonWithAuxAdam, and with --own as
DeepSpeed's own CPU optimizers do.
"""
import argparse
import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # DeepSpeed compiles Muon for each shape
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE"  # a processor's own products of bfloat16 round in another way

import json
import math
import random
import subprocess
import sys

import torch
from deepspeed.runtime import lr_schedules

STEPS = 1000


def random_schedule(source):
    kind = source.choice(["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest"])
    warmup = {"warmup_num_steps": source.choice([1, 2, 3, 50, 333, 1000, 5000]), "warmup_type": source.choice(["log", "linear"])}
    params = {
        "WarmupLR": lambda: {**warmup, "warmup_min_lr": source.choice([0, 1e-5]), "warmup_max_lr": source.uniform(1e-4, 1e-2)},
        "WarmupDecayLR": lambda: {**warmup, "total_num_steps": source.choice([40, 700, 1000, 3000])},
        "WarmupCosineLR": lambda: {**warmup, "total_num_steps": source.choice([40, 700, 1000, 3000]),
                                   "warmup_min_ratio": source.choice([0, 0.1]), "cos_min_ratio": source.choice([0.0001, 0.2])},
        "OneCycle": lambda: {"cycle_min_lr": source.uniform(1e-5, 1e-3), "cycle_max_lr": source.uniform(1e-3, 1e-1),
                             "cycle_first_step_size": source.choice([1, 7, 100, 400]), "decay_lr_rate": source.choice([0, 0.01, 1]),
                             "decay_step_size": source.choice([0, 1, 30]), "cycle_first_stair_count": source.choice([0, 0, 3, 10]),
                             "cycle_momentum": source.random() < 0.7, "cycle_min_mom": 0.8, "cycle_max_mom": source.choice([0.9, 0.95]),
                             "decay_mom_rate": source.choice([0, 0.001])},
        "LRRangeTest": lambda: {"lr_range_test_min_lr": source.uniform(1e-5, 1e-3), "lr_range_test_step_size": source.choice([1, 9, 200]),
                                "lr_range_test_step_rate": source.choice([1, 0.5, 5]), "lr_range_test_staircase": source.random() < 0.5},
    }[kind]()
    if kind == "OneCycle" and source.random() < 0.5:
        params["cycle_second_step_size"] = source.choice([1, 50, 300])
        params["cycle_second_stair_count"] = source.choice([0, 4])
    if source.random() < 0.3:
        optional = [key for key in params if key not in ("total_num_steps", "cycle_min_lr", "cycle_max_lr")]
        params.pop(source.choice(optional))
    return kind, params


def deepspeeds_rates(kind, params):
    weights = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([weights], lr=0.01, betas=(0.85, 0.98))
    schedule = getattr(lr_schedules, kind)(optimizer, **params)
    rates, betas = [], []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        betas.append(list(optimizer.param_groups[0]["betas"]))
        optimizer.step()
        schedule.step()
    return rates, betas


def same_numbers(ours, theirs):
    return all(math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-300) for a, b in zip(ours, theirs, strict=True))


def run_ours(program, orders):
    text = "".join(json.dumps(order) + "\n" for order in orders)
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare_schedules(program, settings, source):
    cases = [random_schedule(source) for _ in range(settings)]
    orders = [{"steps": STEPS, "config": {"optimizer": {"type": "Adam", "params": {"lr": 0.01, "betas": [0.85, 0.98]}},
                                          "scheduler": {"type": kind, "params": params}}} for kind, params in cases]
    failed = 0
    for (kind, params), ours in zip(cases, run_ours(program, orders), strict=True):
        rates, betas = deepspeeds_rates(kind, params)
        flat = lambda pairs: [value for pair in pairs for value in pair]
        if not same_numbers(ours["rates"], rates) or not same_numbers(flat(ours["betas"]), flat(betas)):
            failed += 1
            first = next((i for i in range(STEPS) if not same_numbers([ours["rates"][i]], [rates[i]])), None)
            print(f"{kind} {params}: differs, first rate at step {first}: "
                  f"{ours['rates'][first or 0]} for {rates[first or 0]}")
    print(f"{settings} schedules of {STEPS} steps: {failed} differ")
    return failed


class Lamb(torch.optim.Optimizer):
    """The formula of DeepSpeed's fused_lamb_cuda_kernel.cu, which has no version for the CPU."""

    def __init__(self, weights, lr, weight_decay=0.0, bias_correction=True, max_coeff=10.0, min_coeff=0.01, betas=(0.9, 0.999), eps=1e-8):
        super().__init__([weights], dict(lr=lr, decay=weight_decay, corrects=bias_correction, bounds=(min_coeff, max_coeff), betas=betas, eps=eps))

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        weights, (beta1, beta2) = group["params"][0], group["betas"]
        state = self.state[weights]
        count = state["step"] = state.get("step", 0) + 1
        first = state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * weights.grad
        second = state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * weights.grad ** 2
        rate = group["lr"] * (math.sqrt(1 - beta2**count) / (1 - beta1**count) if group["corrects"] else 1)
        update = first / (second.sqrt() + group["eps"]) + group["decay"] * weights
        low, high = group["bounds"]
        weights -= rate * min(max((weights.norm() / update.norm()).item(), low), high) * update


def own_optimizers():
    """{name: makes DeepSpeed's own CPU optimizer}, as far as they compile here."""
    found = {}
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        DeepSpeedCPUAdam([torch.nn.Parameter(torch.zeros(8))])
        found["cpu adam"] = lambda weights, **options: DeepSpeedCPUAdam([weights], **options)
        from deepspeed.ops.lion import DeepSpeedCPULion
        DeepSpeedCPULion([torch.nn.Parameter(torch.zeros(8))])
        found["cpu lion"] = lambda weights, **options: DeepSpeedCPULion([weights], **options)
        from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
        DeepSpeedCPUAdagrad([torch.nn.Parameter(torch.zeros(8))])
        found["cpu adagrad"] = lambda weights, **options: DeepSpeedCPUAdagrad([weights], **options)
    except Exception as error:  # no compiler, or no ninja
        print(f"DeepSpeed's own operators do not compile here: {str(error).splitlines()[0]}")
    return found


def optimizer_cases(has_own):
    rate = {"lr": 1e-3}
    cases = [("AdamW", {**rate, "weight_decay": 0.1}, lambda w: torch.optim.AdamW([w], **rate, weight_decay=0.1)),
             ("Adam", {**rate, "weight_decay": 0.1, "adam_w_mode": False}, lambda w: torch.optim.Adam([w], **rate, weight_decay=0.1)),
             ("Adagrad", {"lr": 1e-2, "lr_decay": 0.01}, lambda w: torch.optim.Adagrad([w], lr=1e-2, lr_decay=0.01)),
             ("SGD", {**rate, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
              lambda w: torch.optim.SGD([w], **rate, momentum=0.9, nesterov=True, weight_decay=0.01)),
             ("Lamb", {"lr": 0.002, "weight_decay": 0.01, "bias_correction": False, "max_coeff": 0.3, "min_coeff": 0.01},
              lambda w: Lamb(w, lr=0.002, weight_decay=0.01, bias_correction=False, max_coeff=0.3, min_coeff=0.01)),
             ("Lamb", {"lr": 0.002, "weight_decay": 0.1}, lambda w: Lamb(w, lr=0.002, weight_decay=0.1)),
             ("SGD", {**rate, "momentum": 0.9, "dampening": 0.1}, lambda w: torch.optim.SGD([w], **rate, momentum=0.9, dampening=0.1))]
    own = own_optimizers() if has_own else {}
    if "cpu adam" in own:
        make = own["cpu adam"]
        cases += [("AdamW", {**rate, "weight_decay": 0.1}, lambda w: make(w, **rate, weight_decay=0.1, adamw_mode=True)),
                  ("Adam", {**rate, "bias_correction": False}, lambda w: make(w, **rate, bias_correction=False)),
                  ("Adam", {**rate, "weight_decay": 0.1, "adam_w_mode": False}, lambda w: make(w, **rate, weight_decay=0.1, adamw_mode=False))]
    if "cpu lion" in own:
        make_lion = own["cpu lion"]
        cases += [("Lion", {**rate, "weight_decay": 0.1}, lambda w: make_lion(w, **rate, weight_decay=0.1)),
                  ("Lion", rate, lambda w: make_lion(w, **rate)),
                  ("Lion", {**rate, "betas": [0.95, 0.98]}, lambda w: make_lion(w, **rate, betas=(0.95, 0.98)))]
    if "cpu adagrad" in own:
        cases.append(("Adagrad", {"lr": 1e-2}, lambda w: own["cpu adagrad"](w, lr=1e-2)))
    return cases


def compare_optimizers(program, source, has_own):
    size, failed = 64, 0
    gradients = [[source.gauss(0, 1) for _ in range(size)] for _ in range(STEPS)]
    start = [source.gauss(0, 1) for _ in range(size)]
    cases = optimizer_cases(has_own)
    orders = [{"steps": STEPS, "weights": start, "gradients": gradients, "config": {"optimizer": {"type": name, "params": params}}}
              for name, params, _ in cases]
    for (name, params, make), ours in zip(cases, run_ours(program, orders), strict=True):
        weights = torch.nn.Parameter(torch.tensor(start))
        optimizer = make(weights)
        for gradient in gradients:
            weights.grad = torch.tensor(gradient)
            optimizer.step()
        worst = (torch.tensor(ours["weights"]) - weights.detach()).abs().max().item()
        # DeepSpeed's own operators round 1 - lr * decay to float32, which 1,000 steps multiply.
        good = worst < (1e-4 if type(optimizer).__module__.startswith("deepspeed") else 2e-5)
        failed += not good
        print(f"{type(optimizer).__name__:20} {name} {params}: largest difference after {STEPS} steps {worst:.1e}{'' if good else '  DIFFERS'}")
    return failed


def muon_cases():
    """(shape or None for Adam's half, parameters)"""
    rates = {"muon_lr": 0.02, "adam_lr": 0.003}
    cases = [(shape, {**rates, "weight_decay": 0.1}) for shape in ([8, 8], [6, 20], [20, 6], [1, 16], [3, 5, 7])]
    return [*cases, ([12, 30], {"lr": 0.01, "momentum": 0.4}), ([12, 30], {**rates, "ns_method": "standard"}), (None, {**rates, "weight_decay": 0.1}),
            (None, {**rates, "weight_decay": 0.1, "adam_w_mode": False}), (None, {})]


def deepspeeds_muon(shape, params, start, gradients):
    """The weights after DeepSpeed's own steps, with its groups of one parameter."""
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam
    weights = torch.nn.Parameter(torch.tensor(start).reshape(shape or [-1]))
    weights.use_muon = shape is not None
    settings = dict(params)
    mode = settings.pop("adam_w_mode", True)
    optimizer = MuonWithAuxAdam(DeepSpeedEngine._muon_param_groups([weights], settings), adam_w_mode=mode)
    for gradient in gradients:
        weights.grad = torch.tensor(gradient).reshape(weights.shape)
        optimizer.step()
    return weights.detach().flatten()


def compare_muon(program, source):
    failed, orders, cases = 0, [], muon_cases()
    for shape, params in cases:
        size = math.prod(shape or [64])
        gradients = [[source.gauss(0, 1) for _ in range(size)] for _ in range(STEPS)]
        orders.append({"steps": STEPS, "weights": [source.gauss(0, 1) for _ in range(size)], "gradients": gradients, "adam": shape is None,
                       "shape": shape or [], "config": {"optimizer": {"type": "Muon", "params": params}}})
    for (shape, params), order, ours in zip(cases, orders, run_ours(program, orders), strict=True):
        theirs = deepspeeds_muon(shape, params, order["weights"], order["gradients"])
        worst = (torch.tensor(ours["weights"]) - theirs).abs().max().item()
        # Versions of torch multiply bfloat16 in different orders, and small singular values grow by up to 3.4^5, with their rounding.
        good = worst < (0.1 if params.get("ns_method") == "standard" else 1e-4)
        failed += not good
        print(f"{'MuonWithAuxAdam':20} {shape or 'Adam'} {params}: largest difference after {STEPS} steps {worst:.1e}{'' if good else '  DIFFERS'}")
    return failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--settings", type=int, default=100)
    parser.add_argument("--own", action="store_true", help="also DeepSpeed's own CPU optimizers, which compile for minutes")
    options = parser.parse_args()
    source = random.Random(5)
    program = f"{options.build}/tests/update_steps"
    failed = compare_schedules(program, options.settings, source) + compare_optimizers(program, source, options.own)
    failed += compare_muon(program, source)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
