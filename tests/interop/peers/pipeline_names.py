#!/usr/bin/env python3
"""Pipelines that real DeepSpeed trains, with the layers of GPT-NeoX, BLOOM and Llama, become models of transformers by --layout.

  pipeline_names.py BUILD

Each job cuts a small model of transformers into a PipelineModule on two ranks, names the parts as the training program does that people
have such folders from, takes two steps and saves. `zero_to_fp32 --layout` and `convert --layout` make a folder that from_pretrained()
takes without a missing or unexpected name, and the logits are those of the pipeline's own modules in one process.
Exit status: 0 all equal, 1 something differs, 77 something is not installed.
"""
import argparse
import collections
import json
import pathlib
import sys
import tempfile

import truth

VOCABULARY, WIDTH, BLOCKS, HEADS, LENGTH = 64, 32, 3, 4, 12


Tied = collections.namedtuple("Tied", "module function")  # a class, and what is called with its module


def config_of(kind):
    import transformers
    if kind == "neox":
        return transformers.GPTNeoXConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=BLOCKS, num_attention_heads=HEADS,
                                          intermediate_size=4 * WIDTH, max_position_embeddings=LENGTH, hidden_dropout=0.0,
                                          attention_dropout=0.0, attn_implementation="eager", tie_word_embeddings=False)
    if kind == "bloom":
        return transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, n_layer=BLOCKS, n_head=HEADS, attn_implementation="eager")
    return transformers.LlamaConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=BLOCKS, num_attention_heads=HEADS,
                                    num_key_value_heads=2, intermediate_size=2 * WIDTH, max_position_embeddings=LENGTH,
                                    attn_implementation="eager", tie_word_embeddings=False)


def layers_of(kind, config):
    """The layers of a pipeline with the local names that the training program gives them: modules, functions and tied pairs."""
    import torch
    from torch import nn
    from transformers.models.bloom import modeling_bloom as bloom
    from transformers.models.gpt_neox import modeling_gpt_neox as neox
    from transformers.models.llama import modeling_llama as llama

    def causal(x):
        size = x.shape[1]
        return torch.full((size, size), torch.finfo(x.dtype).min).triu(1)[None, None]

    def positions(x):
        return torch.arange(x.shape[1])[None]

    class WordEmbeddings(nn.Module):  # GPT-NeoX: word_embeddings; BLOOM: also norm
        def __init__(self, with_norm):
            super().__init__()
            self.word_embeddings = nn.Embedding(VOCABULARY, WIDTH)
            if with_norm:
                self.word_embeddings.norm = nn.LayerNorm(WIDTH)

        def forward(self, tokens):
            x = self.word_embeddings(tokens)
            return self.word_embeddings.norm(x) if hasattr(self.word_embeddings, "norm") else x

    class NeoxBlock(neox.GPTNeoXLayer):
        def forward(self, x):
            turned = neox.GPTNeoXRotaryEmbedding(config)(x, positions(x))
            out = super().forward(x, attention_mask=causal(x), position_embeddings=turned)
            return out[0] if isinstance(out, tuple) else out

    class LlamaBlock(llama.LlamaDecoderLayer):
        def forward(self, x):
            turned = llama.LlamaRotaryEmbedding(config)(x, positions(x))
            out = super().forward(x, attention_mask=causal(x), position_embeddings=turned)
            return out[0] if isinstance(out, tuple) else out

    class BloomBlock(bloom.BloomBlock):
        def forward(self, x):
            mask = torch.ones(x.shape[:2])
            alibi = bloom.build_alibi_tensor(mask, HEADS, x.dtype)
            return super().forward(x, alibi=alibi, attention_mask=causal(x))[0]

    class Norm(nn.Module):  # GPT-NeoX: NormPipe
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x):
            return self.norm(x)

    class Head(nn.Module):  # GPT-NeoX: ParallelLinearPipe
        def __init__(self):
            super().__init__()
            self.final_linear = nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, x):
            return self.final_linear(x)

    def same(x):
        return x

    def logits(module, x):
        return torch.nn.functional.linear(x, module.word_embeddings.weight)

    if kind == "neox":
        return [WordEmbeddings(False), same, *[NeoxBlock(config, i) for i in range(BLOCKS)], same, Norm(), Head()]
    if kind == "bloom":
        return [same, Tied(WordEmbeddings, None), same, *[BloomBlock(config, i) for i in range(BLOCKS)], same, nn.LayerNorm(WIDTH),
                Tied(WordEmbeddings, logits)]
    return [nn.Embedding(VOCABULARY, WIDTH), *[LlamaBlock(config, i) for i in range(BLOCKS)], llama.LlamaRMSNorm(WIDTH),
            nn.Linear(WIDTH, VOCABULARY, bias=False)]


def worker(job_file):
    """One rank: trains, saves, and writes the logits of the trained layers, put together from both stages."""
    import deepspeed
    import torch
    import torch.distributed as dist
    from deepspeed.pipe import PipelineModule, TiedLayerSpec
    job = json.loads(pathlib.Path(job_file).read_text())
    deepspeed.init_distributed("gloo")
    torch.manual_seed(7)
    config = config_of(job["kind"])
    parts = layers_of(job["kind"], config)
    layers = [TiedLayerSpec("embed", part.module, True, forward_fn=part.function, tied_weight_attr=["word_embeddings.weight"])
              if isinstance(part, Tied) else part for part in parts]

    def loss(out, labels):
        return torch.nn.functional.cross_entropy(out.float().flatten(0, 1), labels.flatten())

    model = PipelineModule(layers=layers, loss_fn=loss, num_stages=2, partition_method="uniform")
    engine, *_ = deepspeed.initialize(model=model, config={
        "train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": job["stage"]},
        "zero_allow_untested_optimizer": True, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}}})
    tokens = (torch.arange(LENGTH + 1) * 5 + torch.arange(2)[:, None]) % VOCABULARY
    for _ in range(2):
        engine.train_batch(iter([(tokens[:, :-1], tokens[:, 1:])] * 2))
    engine.save_checkpoint(job["run"], tag="global_step2")
    state = [None] * 2
    dist.all_gather_object(state, {name: value for name, value in model.state_dict().items()})
    if dist.get_rank() == 0:
        trained = {**state[1], **state[0]}  # a tied module: that of the first stage
        plain = torch.nn.ModuleDict({str(i): part for i, part in enumerate(parts) if isinstance(part, torch.nn.Module)})
        plain.load_state_dict({k: v for k, v in trained.items() if not k.startswith("tied_modules.")})
        shared = {k.removeprefix("tied_modules.embed."): v for k, v in trained.items() if k.startswith("tied_modules.")}
        x = tokens[:, :-1]
        with torch.no_grad():
            for part in parts:
                if isinstance(part, Tied):
                    module = part.module(True)
                    module.load_state_dict(shared)
                    x = part.function(module, x) if part.function else module(x)
                else:
                    x = part(x)
        torch.save(x, job["logits"])
    dist.barrier()


def check(program, scratch, kind, stage):
    import torch
    import transformers
    folder = scratch / f"{kind}{stage}"
    folder.mkdir()
    job = {"kind": kind, "stage": stage, "run": str(folder / "run"), "logits": str(folder / "logits.pt")}
    (folder / "job.json").write_text(json.dumps(job))
    answers, _ = truth.launch(worker, folder / "job.json", 2)
    if any(status for status, _ in answers):
        return [output[-1500:] for status, output in answers if status]
    layout = "llama-pipe" if kind == "llama" else kind
    wrong = []
    for verb, options in (("zero_to_fp32", ()), ("convert", ("--to", "safetensors", "--weights-only"))):
        out = folder / verb
        truth.run(program, verb, folder / "run", out, "-q", "--layout", layout, *options)
        config_of(kind).save_pretrained(out)
        model, info = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True, dtype=torch.float32,
                                                                        attn_implementation="eager")
        wrong += [f"{verb}: {key} {sorted(names)[:3]}" for key, names in info.items() if names]
        tokens = ((torch.arange(LENGTH + 1) * 5 + torch.arange(2)[:, None]) % VOCABULARY)[:, :-1]
        with torch.no_grad():
            found = model.eval()(tokens).logits
        wanted = torch.load(job["logits"])
        if not torch.allclose(found, wanted, rtol=1e-5, atol=1e-5):
            wrong.append(f"{verb}: logits differ by {float((found - wanted).abs().max()):.2g}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1])
    arguments = parser.parse_args()
    program = arguments.build.resolve() / "bin/unishard"
    truth.require("torch", "deepspeed", "transformers")
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for kind in ("neox", "bloom", "llama"):
            for stage in arguments.stages:
                wrong = check(program, pathlib.Path(scratch), kind, stage)
                failed += bool(wrong)
                print(f"{kind:6} stage {stage} as a model of transformers {'equal' if not wrong else 'DIFFERS: ' + '; '.join(wrong)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
