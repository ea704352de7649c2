#!/usr/bin/env python3
"""Compares the logits of our GPT with those of the real transformers, on the same weights, in both directions.

  gpt2_logits.py BUILD [--steps N] [--keep FOLDER]

BUILD is a build folder with the targets train_gpt, gpt_logits and unishard; the Python that runs this needs torch and
transformers.

in:   a random GPT2LMHeadModel is saved in every layout that GPT-2 comes in; our program loads it at stage 0 alone and at
      stage 3 on two ranks.
out:  train_gpt goes on from these weights at stage 3 on two ranks; `unishard` writes the run as a model folder, which
      AutoModelForCausalLM loads without a missing, unexpected or mismatched key.

Exit status: 0 all differences are at most 1e-5, 1 something differs or failed, 77 something is not installed.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

try:
    import numpy
    import torch
    import transformers
    from safetensors.torch import save_file
except ImportError as error:
    print("SKIP:", error)
    sys.exit(77)

LIMIT = 1e-5
SIZES = dict(n_layer=3, n_embd=64, n_head=4, vocab_size=300, n_positions=48)
LINEAR = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
FIRST_TOKENS = torch.tensor([[(7 * i * i + 13 * i + 101 * row) % SIZES["vocab_size"] for i in range(48)] for row in range(3)])


def new_model():
    torch.manual_seed(20)
    config = transformers.GPT2Config(**SIZES, bos_token_id=None, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():  # wider than at the start of a training, and no bias at zero
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def logits_of(model):
    with torch.no_grad():
        return model(FIRST_TOKENS).logits.float().numpy()


def save_bin(folder, state, shards=1):
    """As transformers before version 5 did: one pytorch_model.bin, or several and an index."""
    folder.mkdir()
    if shards == 1:
        torch.save(state, folder / "pytorch_model.bin")
        return
    names = sorted(state)
    weight_map = {}
    for shard in range(shards):
        file = f"pytorch_model-{shard + 1:05}-of-{shards:05}.bin"
        mine = names[shard::shards]
        torch.save({name: state[name].clone() for name in mine}, folder / file)
        weight_map.update((name, file) for name in mine)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def masks():
    size = SIZES["n_positions"]
    for layer in range(SIZES["n_layer"]):
        yield f"h.{layer}.attn.bias", torch.ones(size, size).tril().view(1, 1, size, size)
        yield f"h.{layer}.attn.masked_bias", torch.tensor(-1e4)


def save_layouts(model, folder):
    """Name -> folder with the weights. Every folder has the config.json."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hub = {name.removeprefix("transformer."): tensor for name, tensor in state.items() if name != "lm_head.weight"}
    hub |= dict(masks())
    nano = {name: tensor.t().contiguous() if name.endswith(LINEAR) else tensor for name, tensor in state.items()}
    rows = {}

    def row(name, write):
        rows[name] = folder / name.replace(" ", "_").replace(",", "")
        write(rows[name])
        if not (rows[name] / "config.json").exists():
            model.config.architectures = ["GPT2LMHeadModel"]
            (rows[name] / "config.json").write_text(model.config.to_json_string())

    def save_safetensors(tensors):
        def write(target):
            target.mkdir()
            save_file(tensors, target / "model.safetensors", {"format": "pt"})
        return write

    row("save_pretrained", model.save_pretrained)
    row("save_pretrained, sharded", lambda target: model.save_pretrained(target, max_shard_size="100KB"))
    row("pytorch_model.bin", lambda target: save_bin(target, model.state_dict()))
    row("pytorch_model.bin, sharded", lambda target: save_bin(target, state, 3))
    row("as on the hub, with masks", save_safetensors(hub))
    row("with a copied lm_head", save_safetensors(state))
    row("nanoGPT, transposed", save_safetensors(nano))
    return rows


def run(*command, ranks=1):
    if ranks > 1:
        command = (BIN / "unishard", "launch", "--nproc-per-node", ranks, "--", *command)
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def our_logits(config, checkpoint, stage, ranks, folder):
    (folder / "tokens").write_text("\n".join(" ".join(map(str, line.tolist())) for line in FIRST_TOKENS) + "\n")
    run(TESTS / "gpt_logits", config, checkpoint, stage, folder / "tokens", folder / "logits", ranks=ranks)
    return numpy.fromfile(folder / "logits", dtype=numpy.float32).reshape(*FIRST_TOKENS.shape, -1)


def their_logits(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    found = {key: sorted(map(str, value)) for key, value in info.items() if value}
    if found:
        raise RuntimeError(f"from_pretrained({folder.name}): {found}")
    if type(model) is not transformers.GPT2LMHeadModel:
        raise RuntimeError(f"from_pretrained({folder.name}): {type(model).__name__}")
    return logits_of(model.float().eval())


def train(resume, model, target, folder, stage, ranks, steps):
    (folder / "ds.json").write_text(json.dumps({
        "train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "steps_per_print": 0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}}}))
    (folder / "text").write_bytes(bytes((i * i + i // 7) % 251 for i in range(20000)))
    done = run(BIN / "train_gpt", "--config", folder / "ds.json", "--data", folder / "text", "--model", model, "--resume", resume,
        "--stage", stage, "--steps", steps, "--save-dir", target, ranks=ranks)
    if "holds weights only" not in done.stdout:
        raise RuntimeError(f"train_gpt did not start from {resume}:\n{done.stdout}")


class Table:
    def __init__(self):
        self.failed = 0

    def row(self, name, measure):
        try:
            difference = measure()
            verdict = "ok" if difference <= LIMIT else "DIFFERS"
            print(f"{name:<58} {difference:10.2e}  {verdict}", flush=True)
        except Exception as error:  # the other rows are worth knowing too
            verdict = "FAILED"
            print(f"{name:<58} {'-':>10}  {verdict}: {error}", flush=True)
        self.failed += verdict != "ok"


def biggest(a, b):
    if a.shape != b.shape:
        raise RuntimeError(f"{a.shape} and {b.shape}")
    return float(numpy.abs(a - b).max())


def compare_all(folder, steps):
    table = Table()
    model = new_model()
    before = logits_of(model)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}; logits {before.shape}, "
          f"{before.min():.2f} to {before.max():.2f}; limit {LIMIT:g}")
    layouts = save_layouts(model, folder)
    for name, path in layouts.items():
        for stage, ranks in ((0, 1), (3, 2)):
            table.row(f"in: {name}; stage {stage}, {ranks} ranks", lambda: biggest(
                before, our_logits(path / "config.json", path, stage, ranks, folder)))
    start = layouts["save_pretrained"]
    run_folder = folder / "run"
    exported = {}

    def trained():
        train(f"{start}/", start, run_folder, folder, 3, 2, steps)
        return our_logits(start / "config.json", run_folder, 0, 1, folder)

    ours = trained()
    print(f"trained {steps} steps at stage 3 on 2 ranks: logits moved by up to {biggest(before, ours):.2f}")

    def export(name, *command):
        exported[name] = folder / f"export_{len(exported)}"
        run(BIN / "unishard", *command[:1], *[exported[name] if word == "OUT" else word for word in command[1:]])
        return exported[name]

    rows = {
        "zero_to_fp32": ("zero_to_fp32", run_folder, "OUT"),
        "zero_to_fp32, sharded": ("zero_to_fp32", run_folder, "OUT", "--max_shard_size", "100KB"),
        "convert --to safetensors": ("convert", run_folder, "OUT", "--to", "safetensors", "--weights-only"),
        "convert --to torch": ("convert", run_folder, "OUT", "--to", "torch", "--weights-only"),
    }
    for name, command in rows.items():
        table.row(f"out: {name}", lambda: biggest(ours, their_logits(export(name, *command))))
    for way in ("deepspeed", "dcp"):
        middle = folder / f"run_{way}"
        run(BIN / "unishard", "convert", run_folder, middle, "--to", way)
        table.row(f"out: {way}, then zero_to_fp32",
                  lambda: biggest(ours, their_logits(export(way, "zero_to_fp32", middle, "OUT"))))

    def back():
        path = exported["zero_to_fp32"]
        return biggest(ours, our_logits(path / "config.json", path, 3, 2, folder))

    table.row("out and in again; stage 3, 2 ranks", back)
    return table.failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--keep", type=pathlib.Path, help="new folder for all files")
    options = parser.parse_args()
    global BIN, TESTS
    BIN, TESTS = (options.build / "bin").resolve(), (options.build / "tests").resolve()
    os.environ["PATH"] = f"{BIN}:{os.environ['PATH']}"
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = options.keep or pathlib.Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return 1 if compare_all(folder, options.steps) else 0
    finally:
        if not options.keep:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
