#!/usr/bin/env python3
"""Compares the logits of our language models with those of the real transformers, on the same weights, in both directions.

  model_logits.py BUILD [--steps N] [--keep FOLDER] [--few]

BUILD is a build folder with the targets train_gpt, model_logits and unishard; the Python that runs this needs torch and
transformers.

in:   random models (GPT-2, Llama, Mistral, Qwen2, Qwen3, each variant of the rotary embedding, windows, contexts longer than the
      model's) are saved in every layout that they come in; our program loads them at stage 0 alone and at stage 3 on two ranks.
out:  train_gpt continues from these weights at stage 3 on two ranks; `unishard` writes the run as a model folder, which
      AutoModelForCausalLM loads without a missing, unexpected or mismatched key, and whose configuration is the first one's.
--few loads each layout of GPT-2 at one of the sizes, and two of three of the other models on two ranks in training alone.

Everything is computed in fp32. Exit status: 0 all differences are at most 1e-5 of the largest logit, 1 something differs or failed,
77 something is not installed.
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
LLAMA_SIZES = dict(vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
                   num_key_value_heads=2, max_position_embeddings=48, eos_token_id=299, bos_token_id=298)


def tokens_of(length):
    return torch.tensor([[(7 * i * i + 13 * i + 101 * row) % SIZES["vocab_size"] for i in range(length)] for row in range(3)])


def new_model(config):
    torch.manual_seed(20)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():  # wider than at the start of a training, and no bias at zero
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def new_gpt2():
    return new_model(transformers.GPT2Config(**SIZES, bos_token_id=None, eos_token_id=None))


def logits_of(model, length):
    with torch.no_grad():
        return model(tokens_of(length)).logits.float().numpy()


def rope(rope_type, **values):
    return {"rope_type": rope_type, "rope_theta": 10000.0, **values}


def llama_variants():
    """Name, configuration and the lengths of the contexts to compare. A context longer than original_max_position_embeddings (32
    here), or than the model's own, tells the scaling variants apart."""
    llama, mistral = transformers.LlamaConfig, transformers.MistralConfig
    qwen2, qwen3 = transformers.Qwen2Config, transformers.Qwen3Config
    frequencies = LLAMA_SIZES["hidden_size"] // LLAMA_SIZES["num_attention_heads"] // 2
    short = [1.0 + 0.01 * i for i in range(frequencies)]
    long = [1.5 + 0.5 * i for i in range(frequencies)]
    original = dict(original_max_position_embeddings=32)

    def one(name, kind, lengths=(48,), **values):
        return name, kind(**{**LLAMA_SIZES, **values}), lengths

    def scaled(rope_type, lengths=(20, 96), name="", **values):
        return one(f"Llama, {rope_type}{name}", llama, lengths, max_position_embeddings=96,
                   rope_parameters=rope(rope_type, **values))

    return [
        one("Llama", llama),
        one("Llama, tied", llama, tie_word_embeddings=True),
        one("Llama, all biases, head_dim 24, one key head", llama, attention_bias=True, mlp_bias=True, head_dim=24,
            num_key_value_heads=1, rms_norm_eps=1e-5),
        one("Llama, theta 500000", llama, rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
        scaled("linear", factor=3.0),
        one("Llama, dynamic", llama, (40, 48, 130), rope_parameters=rope("dynamic", factor=2.0)),
        scaled("yarn", factor=3.0, **original),
        scaled("yarn", name=", attention_factor", factor=3.0, attention_factor=1.3, truncate=False, beta_fast=20.0, **original),
        scaled("yarn", name=", mscale", factor=3.0, mscale=0.8, mscale_all_dim=0.5, **original),
        scaled("longrope", (20, 32, 33, 96), short_factor=short, long_factor=long, factor=3.0, **original),
        scaled("longrope", name=", no factor", short_factor=short, long_factor=long, **original),
        scaled("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, **original),
        one("Mistral, window 16", mistral, (12, 48, 130), sliding_window=16, max_position_embeddings=130),
        one("Mistral, no window, head_dim 32", mistral, sliding_window=None, head_dim=32),
        one("Qwen2", qwen2),
        one("Qwen2, tied, upper layers slide", qwen2, (48, 90), tie_word_embeddings=True, use_sliding_window=True, sliding_window=8,
            max_window_layers=1, max_position_embeddings=90),
        one("Qwen3", qwen3, head_dim=32),
        one("Qwen3, layer_types, yarn", qwen3, (20, 96), head_dim=16, attention_bias=True, use_sliding_window=True, sliding_window=8,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"], max_position_embeddings=96,
            rope_parameters=rope("yarn", factor=3.0, **original)),
    ]


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


def our_logits(config, checkpoint, stage, ranks, folder, length=48):
    tokens = tokens_of(length)
    (folder / "tokens").write_text("\n".join(" ".join(map(str, line.tolist())) for line in tokens) + "\n")
    run(TESTS / "model_logits", config, checkpoint, stage, folder / "tokens", folder / "logits", ranks=ranks)
    return numpy.fromfile(folder / "logits", dtype=numpy.float32).reshape(*tokens.shape, -1)


def their_logits(folder, kind, length=48):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    found = {key: sorted(map(str, value)) for key, value in info.items() if value}
    if found:
        raise RuntimeError(f"from_pretrained({folder.name}): {found}")
    if type(model) is not kind:
        raise RuntimeError(f"from_pretrained({folder.name}): {type(model).__name__}")
    return logits_of(model.float().eval(), length)


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
            print(f"{name:<66} {difference:10.2e}  {verdict}", flush=True)
        except Exception as error:  # the other rows are worth knowing too
            verdict = "FAILED"
            print(f"{name:<66} {'-':>10}  {verdict}: {error}", flush=True)
        self.failed += verdict != "ok"


def biggest(expected, found):
    """The largest difference, as a part of the largest logit where that is over 1."""
    if expected.shape != found.shape:
        raise RuntimeError(f"{expected.shape} and {found.shape}")
    return float(numpy.abs(expected - found).max() / max(1, numpy.abs(expected).max()))


def compare_gpt2(table, folder, steps, few):
    folder.mkdir()
    model = new_gpt2()
    before = logits_of(model, 48)
    print(f"GPT-2: logits {before.shape}, {before.min():.2f} to {before.max():.2f}")
    layouts = save_layouts(model, folder)
    for number, (name, path) in enumerate(layouts.items()):
        for stage, ranks in [((0, 1), (3, 2))[number % 2]] if few else [(0, 1), (3, 2)]:
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
        table.row(f"out: {name}", lambda: biggest(ours, their_logits(export(name, *command), transformers.GPT2LMHeadModel)))
    for way in ("deepspeed", "dcp"):
        middle = folder / f"run_{way}"
        run(BIN / "unishard", "convert", run_folder, middle, "--to", way)
        table.row(f"out: {way}, then zero_to_fp32",
                  lambda: biggest(ours, their_logits(export(way, "zero_to_fp32", middle, "OUT"), transformers.GPT2LMHeadModel)))

    def back():
        path = exported["zero_to_fp32"]
        return biggest(ours, our_logits(path / "config.json", path, 3, 2, folder))

    table.row("out and in again; stage 3, 2 ranks", back)


def save_llama_layouts(model, folder):
    """Name -> folder with the weights, beyond what save_pretrained writes."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    base = {name.removeprefix("model."): tensor for name, tensor in state.items() if name != "lm_head.weight"}
    buffers = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(8) for layer in range(3)}
    rows = {
        "pytorch_model.bin, with rotary buffers": lambda target: save_bin(target, state | buffers),
        "the base model alone": lambda target: (target.mkdir(), save_file(base, target / "model.safetensors", {"format": "pt"})),
        "sharded": lambda target: model.save_pretrained(target, max_shard_size="50KB"),
    }
    paths = {}
    for number, (name, write) in enumerate(rows.items()):
        paths[name] = folder / f"layout_{number}"
        write(paths[name])
        (paths[name] / "config.json").write_text(model.config.to_json_string())
    return paths


def version4(config_file):
    """Rewrites a configuration as transformers 4 wrote it."""
    config = json.loads(config_file.read_text())
    rope_parameters = config.pop("rope_parameters")
    config["rope_theta"] = rope_parameters.pop("rope_theta")
    kind = rope_parameters.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **rope_parameters}
    config["torch_dtype"] = config.pop("dtype", "float32")
    config_file.write_text(json.dumps(config))


def same_configuration(one, other):
    """Raises where two folders' configurations mean different models."""
    def meaning(path):
        found = transformers.AutoConfig.from_pretrained(path).to_dict()
        for key in ("_name_or_path", "transformers_version", "dtype", "architectures", "max_window_layers"):
            found.pop(key, None)
        return {key: value for key, value in found.items() if value is not None}
    first, second = meaning(one), meaning(other)
    differences = {key: (first.get(key), second.get(key)) for key in first.keys() | second.keys() if first.get(key) != second.get(key)}
    # What a longrope without a factor or a yarn leaves to its defaults is written out.
    for key, (before, after) in list(differences.items()):
        if key == "rope_parameters" and all(after.get(name) == value for name, value in before.items()):
            del differences[key]
    if differences:
        raise RuntimeError(f"config.json of {other.name}: {differences}")


def distinct(logits, config, length):
    """Returns 0; raises where the scaling or the window of a configuration changes nothing, so that the rows would prove nothing."""
    plain = config.to_dict()
    plain["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    plain["layer_types"] = None
    plain["sliding_window"] = None
    other = type(config)(**{key: value for key, value in plain.items() if key != "model_type"})
    changes = config.rope_parameters != plain["rope_parameters"] or bool(getattr(config, "sliding_window", None))
    difference = biggest(logits, logits_of(new_model(other), length))
    if changes != (difference > 1000 * LIMIT):
        raise RuntimeError(f"differs from a plain model by {difference:.2e}")
    return 0


def compare_llamas(table, folder, steps, few):
    folder.mkdir()
    for number, (name, config, lengths) in enumerate(llama_variants()):
        home = folder / str(number)
        home.mkdir()
        model = new_model(config)
        path = home / "model"
        model.save_pretrained(path)
        for length in lengths:
            ranks, stage = (2, 3) if length == lengths[-1] else (1, 0)
            if few and ranks == 2 and number % 3 != 0:
                continue
            table.row(f"in: {name}; context {length}; stage {stage}, {ranks} ranks", lambda: biggest(
                logits_of(new_model(config), length), our_logits(path / "config.json", path, stage, ranks, home, length)))
        length = lengths[-1]
        before = logits_of(new_model(config), length)
        table.row(f"{name} is no plain model", lambda: distinct(before, config, length))
        shutil.copytree(path, home / "version4")
        version4(home / "version4" / "config.json")
        table.row(f"in: {name}; configuration of transformers 4", lambda: biggest(
            their_logits(home / "version4", type(model), length),
            our_logits(home / "version4" / "config.json", home / "version4", 0, 1, home, length)))
        if name == "Llama, tied":
            for layout, where in save_llama_layouts(model, home).items():
                table.row(f"in: {name}; {layout}", lambda: biggest(
                    before, our_logits(where / "config.json", where, 3, 2, home, length)))

        def trained_and_exported():
            train(f"{path}/", path, home / "run", home, 3, 2, steps)
            run(BIN / "unishard", "zero_to_fp32", home / "run", home / "export")
            same_configuration(path, home / "export")
            ours = our_logits(path / "config.json", home / "run", 0, 1, home, length)
            if biggest(before, ours) < 1e-3:
                raise RuntimeError("the training changed nothing")
            return biggest(their_logits(home / "export", type(model), length), ours)

        table.row(f"out: {name}", trained_and_exported)


def compare_all(folder, steps, few):
    table = Table()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}; limit {LIMIT:g} of the largest logit")
    compare_gpt2(table, folder / "gpt2", steps, few)
    compare_llamas(table, folder / "llama", steps, few)
    return table.failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--keep", type=pathlib.Path, help="new folder for all files")
    parser.add_argument("--few", action="store_true")
    options = parser.parse_args()
    global BIN, TESTS
    BIN, TESTS = (options.build / "bin").resolve(), (options.build / "tests").resolve()
    os.environ["PATH"] = f"{BIN}:{os.environ['PATH']}"
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = options.keep or pathlib.Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return 1 if compare_all(folder, options.steps, options.few) else 0
    finally:
        if not options.keep:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
