#!/usr/bin/env python3
"""`unishard estimate` counts 20 models as transformers does, and prints DeepSpeed's numbers for them.

estimates.py BUILD
"""
import contextlib
import io
import json
import subprocess
import sys
import tempfile

import torch
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs_all_cold
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs_all_cold
from transformers import AutoConfig, AutoModelForCausalLM

LLAMA = dict(hidden_size=512, intermediate_size=1376, num_hidden_layers=6, num_attention_heads=8, vocab_size=32000)
MODELS = [
    ("gpt2", dict()),
    ("gpt2", dict(n_embd=1600, n_layer=48, n_head=25)),
    ("gpt2", dict(n_embd=256, n_layer=3, n_head=4, n_inner=600, vocab_size=1000, tie_word_embeddings=False)),
    ("gpt_neox", dict(hidden_size=768, num_hidden_layers=4, num_attention_heads=12, intermediate_size=3072)),
    ("gpt_neox", dict(hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=900,
                      tie_word_embeddings=True)),
    ("bloom", dict(hidden_size=512, n_layer=4, n_head=8)),
    ("opt", dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, ffn_dim=3072, word_embed_proj_dim=768)),
    ("opt", dict(hidden_size=2048, num_hidden_layers=24, num_attention_heads=32, ffn_dim=8192, word_embed_proj_dim=2048)),
    ("llama", LLAMA),
    ("llama", dict(LLAMA, num_key_value_heads=2, attention_bias=True, mlp_bias=True)),
    ("llama", dict(LLAMA, head_dim=96, tie_word_embeddings=True)),
    ("llama", dict(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, vocab_size=32000)),
    ("mistral", dict(LLAMA, num_key_value_heads=2)),
    ("mistral", dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                     num_key_value_heads=8, vocab_size=32768)),
    ("qwen2", dict(LLAMA, num_key_value_heads=2)),
    ("qwen2", dict(LLAMA, num_key_value_heads=4, tie_word_embeddings=True, vocab_size=151936)),
    ("qwen3", dict(LLAMA, num_key_value_heads=4, head_dim=128)),
    ("qwen3", dict(LLAMA, num_key_value_heads=4, head_dim=64, attention_bias=True, tie_word_embeddings=True)),
    ("gemma", dict(LLAMA, num_key_value_heads=1, head_dim=256, vocab_size=256000)),
    ("phi3", dict(LLAMA, num_key_value_heads=8, vocab_size=32064, pad_token_id=0)),
]
SETUPS = [(1, 1), (1, 4), (2, 8), (16, 8)]


def size_of(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    total = sum({id(p): p.numel() for p in model.parameters()}.values())
    return total, max(sum(p.numel() for p in m.parameters(recurse=False)) for m in model.modules())


def printed(function, *args):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        function(*args)
    return out.getvalue().replace("OffloadDeviceEnum.cpu", "cpu ")  # newer Pythons print the name of the enum


def main(build):
    failed = 0
    for number, (kind, options) in enumerate(MODELS):
        config = AutoConfig.for_model(kind, **options)
        total, largest = size_of(config)
        with tempfile.TemporaryDirectory() as folder:
            config.save_pretrained(folder)
            for nodes, devices in SETUPS:
                command = [f"{build}/bin/unishard", "estimate", folder, "--nodes", str(nodes), "--gpus", str(devices)]
                told = subprocess.run(command, capture_output=True, text=True)
                numbers = json.loads(subprocess.check_output(command + ["--json"]))
                wanted = [printed(estimate_zero2_model_states_mem_needs_all_cold, total, devices, nodes),
                          printed(estimate_zero3_model_states_mem_needs_all_cold, total, largest, devices, nodes)]
                same = (numbers["parameters"], numbers["largest_layer"]) == (total, largest)
                if told.returncode == 0 and same and all(text in told.stdout for text in wanted):
                    continue
                failed += 1
                print(f"{kind} {options} on {nodes} x {devices}: {numbers['parameters']}, {numbers['largest_layer']} for "
                      f"{total}, {largest}\n{told.stdout}{told.stderr}\nDeepSpeed:\n{''.join(wanted)}")
    print(f"{len(MODELS)} models on {len(SETUPS)} setups: {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
