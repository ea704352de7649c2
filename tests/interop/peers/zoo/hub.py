"""Makers of folders of the Trainer, of accelerate and of PEFT."""

import json
import pathlib

import torch

from . import models

TINY = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "n_positions": 32,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "ffn_dim": 24,
    "word_embed_proj_dim": 16,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_training(folder, form, weights, optimizer, step):
    """Writes a model and an optimizer as torch.save, the Trainer or accelerate do; returns the part of the truth that says where."""
    from safetensors.torch import save_file

    if form == "torch":
        torch.save({"model": weights, "optimizer": optimizer}, folder / "ckpt.pt")
        return {"input": "ckpt.pt"}
    name = "checkpoint-2" if form == "trainer" else "checkpoint_0"
    (folder / name).mkdir()
    save_file(
        {key: value.detach().clone().contiguous() for key, value in weights.items()}, folder / name / "model.safetensors", {"format": "pt"}
    )
    torch.save(optimizer, folder / name / ("optimizer.pt" if form == "trainer" else "optimizer.bin"))
    if form == "trainer":
        (folder / name / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return {"input": name}


def file_names(folder, net):
    """{name in the model: name in the file}, found by values, because some modules have other names in files."""
    from safetensors.torch import load_file

    saved = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        saved.update(load_file(path))
    if not saved:
        for path in sorted(pathlib.Path(folder).glob("*.bin")):
            if "optimizer" not in path.name:
                saved.update(torch.load(path, weights_only=True))
    names, left = {}, dict(saved)
    for name, tensor in sorted(net.state_dict().items(), key=lambda item: item[0] not in saved):
        if name in left:
            names[name] = name
            left.pop(name)
            continue
        for key, value in left.items():
            if value.shape == tensor.shape and value.dtype == tensor.dtype and torch.equal(value, tensor):
                names[name] = key
                left.pop(key)
                break
    return names, saved


def truth_of_folder(folder, net, optimizer, **more):
    names, saved = file_names(folder, net)
    truth = models.truth_of(net, optimizer)
    known = lambda name: names.get(name, name)
    return {
        **truth,
        "weights": saved,
        "aliases": {},
        "states": {known(name): state for name, state in truth["states"].items()},
        "order": [known(name) for name in truth["order"]],
        "groups": [{**group, "params": [known(name) for name in group["params"]]} for group in truth["groups"]],
        **more,
    }


def make_transformer(rng):
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = rng.choice(("gpt2", "llama", "qwen3", "opt", "gpt_neox", "gemma2", "phi"))
    torch.manual_seed(rng.randrange(1 << 30))
    more = {"tie_word_embeddings": True} if rng.random() < 0.3 else {}
    config = AutoConfig.for_model(kind, **{**TINY, **({"head_dim": 8} if kind in ("qwen3", "gemma2") else {}), **more})
    net = AutoModelForCausalLM.from_config(config)
    return net, kind + (" tied" if more else "")


class Rows(torch.utils.data.Dataset):
    def __init__(self, names=("input_ids", "labels")):
        self.rows, self.names = torch.randint(3, 60, (16, 8), generator=torch.Generator().manual_seed(7)), names

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {name: self.rows[i] for name in self.names}


def run_trainer(folder, net, options):
    import transformers
    from transformers import Trainer, TrainingArguments

    transformers.logging.set_verbosity_error()
    trainer = Trainer(
        model=net,
        train_dataset=Rows(),
        args=TrainingArguments(
            output_dir=str(folder),
            max_steps=2,
            save_steps=2,
            per_device_train_batch_size=2,
            logging_steps=1,
            learning_rate=1e-2,
            weight_decay=0.1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            **options,
        ),
    )
    trainer.train()
    optimizer = trainer.optimizer
    return getattr(optimizer, "optimizer", optimizer)


def trainer(folder, rng):
    """checkpoint-2 of the Trainer with one of its optimizers, whole or with frozen parts."""
    net, kind = make_transformer(rng)
    optim = rng.choice(
        (
            "adamw_torch",
            "adamw_torch",
            "sgd",
            "adafactor",
            "rmsprop",
            "adagrad",
            "adamw_torch_fused",
            "adamw_bnb_8bit",
            "lion_8bit",
            "paged_adamw_32bit",
            "adamw_torch_8bit",
            "galore_adamw",
        )
    )
    frozen = rng.random() < 0.3
    if frozen:
        net.get_input_embeddings().requires_grad_(False)
    if rng.random() < 0.3:
        net = net.to(torch.bfloat16)
        kind += " bf16"
    more = {"optim_target_modules": ["attn", "mlp", "attention"], "optim_args": "rank=2, update_proj_gap=1"} if "galore" in optim else {}
    torch.compile = lambda function, **options: function  # torchao's optimizers need no compiler then
    optimizer = run_trainer(folder, net, {"optim": optim, **more})
    truth = truth_of_folder(
        folder / "checkpoint-2",
        net,
        optimizer,
        format="trainer",
        input="checkpoint-2",
        about=f"{kind}, {optim}{', embeddings frozen' if frozen else ''}",
    )
    return without_objects(truth)


def without_objects(truth):
    """States that are objects or subclasses of tensors must be named, not kept."""
    from .single import flattened

    truth["states"] = {name: flattened(state) for name, state in truth["states"].items()}
    plain = (int, float, bool, str, list, tuple, type(None))
    truth["subclasses"] = [
        f"{name}.{key}"
        for name, state in truth["states"].items()
        for key, value in state.items()
        if type(value) is not torch.Tensor and not isinstance(value, plain)
    ]
    truth["states"] = {
        name: {key: value for key, value in state.items() if f"{name}.{key}" not in truth["subclasses"]}
        for name, state in truth["states"].items()
    }
    return truth


def make_adapter(net, rng):
    import peft

    targets = {"q_proj", "v_proj"}
    found = sorted({name.rsplit(".", 1)[-1] for name, module in net.named_modules() if isinstance(module, torch.nn.Linear)} & targets)
    targets = found or sorted(
        {
            name.rsplit(".", 1)[-1]
            for name, module in net.named_modules()
            if type(module).__name__ in ("Linear", "Conv1D") and not name.endswith("lm_head") and "embed_out" not in name
        }
    )
    kinds = {
        "lora": lambda: peft.LoraConfig(r=2, target_modules=targets, task_type="CAUSAL_LM"),
        "dora": lambda: peft.LoraConfig(r=2, target_modules=targets, use_dora=True, task_type="CAUSAL_LM"),
        "lora head": lambda: peft.LoraConfig(r=2, target_modules=targets, modules_to_save=["lm_head"], task_type="CAUSAL_LM"),
        "lora bias": lambda: peft.LoraConfig(r=2, target_modules=targets, bias="all", task_type="CAUSAL_LM"),
        "lora tokens": lambda: peft.LoraConfig(r=2, target_modules=targets, trainable_token_indices=[1, 5], task_type="CAUSAL_LM"),
        "adalora": lambda: peft.AdaLoraConfig(init_r=3, target_r=2, target_modules=targets, total_step=10, task_type="CAUSAL_LM"),
        "loha": lambda: peft.LoHaConfig(r=2, target_modules=targets, task_type="CAUSAL_LM"),
        "lokr": lambda: peft.LoKrConfig(r=2, target_modules=targets, task_type="CAUSAL_LM"),
        "vera": lambda: peft.VeraConfig(r=2, target_modules=targets[:1], task_type="CAUSAL_LM"),
        "oft": lambda: peft.OFTConfig(oft_block_size=4, r=0, target_modules=targets, task_type="CAUSAL_LM"),
        "ln": lambda: peft.LNTuningConfig(
            target_modules=[name for name, module in net.named_modules() if "Norm" in type(module).__name__], task_type="CAUSAL_LM"
        ),
        "fourier": lambda: peft.FourierFTConfig(n_frequency=4, target_modules=targets, task_type="CAUSAL_LM"),
        "ia3": lambda: peft.IA3Config(target_modules=targets, feedforward_modules=[], task_type="CAUSAL_LM"),
        "prompt": lambda: peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
        "prefix": lambda: peft.PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
    }
    if getattr(net.config, "num_key_value_heads", net.config.num_attention_heads) != net.config.num_attention_heads:
        del kinds["prefix"]  # PEFT makes keys of all heads for it
    if any(type(module).__name__ == "Conv1D" for module in net.modules()):  # of GPT-2: LyCORIS does not know it
        del kinds["loha"], kinds["lokr"]
    kind = rng.choice(list(kinds))
    return peft.get_peft_model(net, kinds[kind]()), kind


def peft(folder, rng):
    """checkpoint-2 of the Trainer with an adapter of PEFT."""
    base, model_kind = make_transformer(rng)
    net, kind = make_adapter(base, rng)
    optimizer = run_trainer(folder, net, {"optim": rng.choice(("adamw_torch", "sgd", "adafactor"))})
    return truth_of_folder(
        folder / "checkpoint-2", net, optimizer, format="trainer", input="checkpoint-2", adapter=True, about=f"{kind} on {model_kind}"
    )


def accelerate(folder, rng):
    """A folder of Accelerator.save_state with one model or two."""
    from accelerate import Accelerator

    features = models.draw(rng, ("tied", "frozen", "batchnorm", "buffer", "scalar", "deep", "dead", "unused", "empty"))
    count, safe = rng.choice((1, 1, 2)), rng.random() < 0.6
    accelerator = Accelerator(cpu=True)
    nets = [models.make_net(rng, features if i == 0 else []) for i in range(count)]
    kind = rng.choice(models.COMMON)
    arranged = [models.arrange(net, rng, ("one", "decay", "shuffled")) for net in nets]
    optimizers = [models.OPTIMIZERS[kind](parameters) for parameters, _ in arranged]
    compiled = rng.random() < 0.2
    wrapped = [torch.compile(net, backend="eager") if compiled else net for net in nets]
    prepared = accelerator.prepare(*wrapped, *optimizers)
    for step in range(2):
        for net, optimizer in zip(prepared[:count], prepared[count:]):
            accelerator.backward(net(models.batch(nets[0], 0, step) % 5))
            optimizer.step()
            optimizer.zero_grad()
    accelerator.save_state(str(folder / "checkpoint_0"), safe_serialization=safe)
    truth = models.truth_of(nets[0], optimizers[0])
    if safe:  # accelerate leaves second names out
        truth["weights"] = {name: value for name, value in truth["weights"].items() if name not in truth["aliases"]}
        truth["aliases"] = {}
    return {
        **truth,
        "format": "accelerate",
        "input": "checkpoint_0",
        "optimizer": kind,
        "others": [f"model_1.{name}" for name in nets[-1].state_dict()] if count == 2 else [],
        "about": f"{count} models, {kind}, {arranged[0][1]}, {'safetensors' if safe else 'bin'}{', compiled' * compiled}, {features}",
    }
