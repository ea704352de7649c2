#!/usr/bin/env python3
"""A step of PyTorch alone, to be compared with train_gpt's: measure.py calls it.

  torch_step.py eager|fsdp2|deepspeed0|deepspeed2|deepspeed3 DEVICE LAYERS WIDTH HEADS CONTEXT VOCABULARY SAMPLES STEPS
      trains a GPT of GPT-2's form in bfloat16 (fp32 parameters, autocast; fsdp2: mixed precision, one rank; deepspeed: of that ZeRO stage,
      one rank) with fused AdamW and clipping; prints {"seconds": median of the steps after the third}
  torch_step.py pinned
      prints {"rate": GB/s of a copy of 2 GiB from the device to pinned memory}
"""
import json
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        samples, length, width = x.shape
        q, k, v = (part.view(samples, length, self.heads, width // self.heads).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(samples, length, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, context, vocabulary):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks, self.norm = nn.ModuleList(Block(width, heads) for _ in range(layers)), nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.tokens(tokens[:, :-1]) + self.places.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def join_one_rank():
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29519", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")


class Eager:
    """A model with its optimizer."""

    def __init__(self, model, mode, device):
        self.model, self.device, self.casts = model, device, mode == "eager"
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(self, tokens):
        with torch.autocast(self.device, torch.bfloat16, enabled=self.casts):
            loss = self.model(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


class DeepSpeed:
    """The same in DeepSpeed's engine."""

    def __init__(self, model, stage, device, samples):
        if device == "cpu":
            os.environ["DS_ACCELERATOR"] = "cpu"
        import deepspeed
        join_one_rank()
        deepspeed.init_distributed("nccl" if device == "cuda" else "gloo")
        config = {"train_batch_size": samples, "train_micro_batch_size_per_gpu": samples, "gradient_clipping": 1.0, "steps_per_print": 10**6,
                  "bf16": {"enabled": True}, "zero_optimization": {"stage": stage}}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        self.engine = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), optimizer=optimizer, config=config)[0]

    def step(self, tokens):
        self.engine.backward(self.engine(tokens))
        self.engine.step()


def sharded(model):
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    join_one_rank()
    dist.init_process_group("nccl")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def train(mode, device, layers, width, heads, context, vocabulary, samples, steps):
    torch.manual_seed(0)
    with torch.device(device):
        model = Gpt(layers, width, heads, context, vocabulary)
    if mode == "fsdp2":
        model = sharded(model)
    trained = DeepSpeed(model, int(mode[-1]), device, samples) if mode.startswith("deepspeed") else Eager(model, mode, device)
    tokens, seconds = torch.randint(vocabulary, (samples, context + 1), device=device), []
    finish = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    for _ in range(steps):
        finish()
        begin = time.perf_counter()
        trained.step(tokens)
        finish()
        seconds.append(time.perf_counter() - begin)
    print("\n" + json.dumps({"seconds": statistics.median(seconds[3:])}), flush=True)
    os._exit(0)  # a process group of one rank has nothing to wait for


def copy_to_pinned():
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    target = torch.empty(1 << 31, dtype=torch.uint8, pin_memory=True)
    target.copy_(source)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    target.copy_(source)
    torch.cuda.synchronize()
    print(json.dumps({"rate": round(source.numel() / (time.perf_counter() - begin) / 1e9, 1)}))


if __name__ == "__main__":
    if sys.argv[1] == "pinned":
        copy_to_pinned()
    else:
        train(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
