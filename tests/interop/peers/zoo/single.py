"""Makers of files of torch.save, safetensors and Lightning by one process, with the optimizers and tensors of other libraries."""

import argparse
import json

import torch

from . import models


def torch_file(folder, rng):
    """A training file in one of the arrangements of scripts."""
    features = models.draw(rng)
    kind = rng.choice(list(models.OPTIMIZERS)) if rng.random() < 0.6 else rng.choice(models.COMMON)
    net = models.make_net(rng, features, rng.choice(("fp32", "fp32", "fp32", "bf16", "fp64")))
    parameters, way = models.arrange(net, rng)
    optimizer = models.OPTIMIZERS[kind](parameters)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    steps = rng.choice((0, 1, 2, 3))
    models.train(net, optimizer, steps)
    for _ in range(steps):
        schedule.step()
    state, arrangement = arrange_file(net, optimizer, schedule, rng)
    name = rng.choice(("ckpt.pt", "checkpoint.pth.tar", "model_best.ckpt", "epoch=1.pth"))
    legacy = rng.random() < 0.15
    torch.save(state, folder / name, _use_new_zipfile_serialization=not legacy)
    others = [f"ema.{key}" for key in net.state_dict()]
    return models.truth_of(
        net,
        optimizer,
        format="torch",
        input=name,
        others=others,
        about=f"{kind}, {way}, {steps} steps, {arrangement}, {features}" + (", legacy" if legacy else ""),
        optimizer=kind,
    )


def arrange_file(net, optimizer, schedule, rng):
    """The object of a training file, and what was drawn."""
    model_key, optimizer_key = rng.choice(
        (
            ("model", "optimizer"),
            ("model_state_dict", "optimizer_state_dict"),
            ("state_dict", "optimizer"),
            ("module", "optim"),
            ("net", "opt"),
            ("model", "optimizers"),
        )
    )
    prefix = rng.choice(("", "", "", "module.", "_orig_mod.", "module._orig_mod."))
    weights = {prefix + key: value for key, value in net.state_dict().items()}
    states = optimizer.state_dict()
    state = {model_key: weights, optimizer_key: [states] if optimizer_key == "optimizers" else states}
    extras = {
        "epoch": 3,
        "args": argparse.Namespace(lr=0.1, betas=(0.9, 0.95)),
        "best": torch.tensor(0.25),
        "rng": torch.get_rng_state(),
        "scheduler": schedule.state_dict(),
        "history": [0.5, float("nan"), {"a": (1, 2)}],
        "scaler": {"scale": 65536.0, "growth_factor": 2.0},
        "ema": {key: value + 1 for key, value in net.state_dict().items()},
        "config": {"n_layer": 2, "bias": False},
        "iter_num": 12,
    }
    chosen = [key for key in extras if rng.random() < 0.35]
    state.update({key: extras[key] for key in chosen})
    if rng.random() < 0.3:
        items = list(state.items())
        rng.shuffle(items)
        state = dict(items)
    return state, f"{model_key} + {optimizer_key}, prefix '{prefix}', with {', '.join(chosen) or 'nothing'}"


def state_dict(folder, rng):
    """Weights alone: files and folders of torch.save and safetensors, with the dtypes and views that occur."""
    from safetensors.torch import save_file

    features = models.draw(rng)
    net = models.make_net(rng, features, rng.choice(list(models.DTYPES)))
    weights = models.copied(dict(net.state_dict()))
    aliases, form = (
        models.aliases_of(net),
        rng.choice(("pt", "safetensors", "bin folder", "safetensors folder", "sharded bin", "sharded safetensors")),
    )
    odd = {
        "odd.int8": torch.arange(6, dtype=torch.int8),
        "odd.half": torch.randn(3).half(),
        "odd.bool": torch.tensor([True, False]),
        "odd.fp8": torch.randn(4, 4).to(torch.float8_e4m3fn),
        "odd.complex": torch.randn(3, dtype=torch.complex64),
        "odd.int64": torch.tensor(7),
        "odd.uint16": torch.tensor([1, 65535]).to(torch.uint16),
        "odd.empty": torch.zeros(0, 3),
        "odd.nan": torch.tensor([float("nan"), float("-inf"), -0.0]),
    }
    chosen = [key for key in odd if rng.random() < 0.3]
    weights.update({key: odd[key] for key in chosen})
    views = rng.random() < 0.4 and "safetensors" not in form
    saved = dict(weights)
    if views:
        base = torch.randn(4, 6)
        saved.update(
            {
                "view.transposed": base.t(),
                "view.rows": base[1:3],
                "view.strided": base[:, ::2],
                "view.expanded": torch.randn(1, 3).expand(2, 3),
                "view.parameter": torch.nn.Parameter(torch.randn(2, 2)),
                "view.same": base,
            }
        )
        weights.update({key: value.detach().clone() for key, value in saved.items() if key.startswith("view.")})
    if "safetensors" in form:  # it refuses tensors that share memory
        for second in aliases:
            del saved[second], weights[second]
        aliases = {}
    elif aliases:
        saved.update({second: saved[first] for second, first in aliases.items()})
    legacy = form == "pt" and rng.random() < 0.3 and not {"odd.fp8", "odd.uint16"} & set(chosen)  # torch cannot read such legacy files
    wrapped = form == "pt" and rng.choice((None, None, "ordered", "model"))
    if form == "pt":
        path = "weights.pt"
        torch.save({"model": saved, "epoch": 1} if wrapped == "model" else saved, folder / path, _use_new_zipfile_serialization=not legacy)
    elif form == "safetensors":
        path = "weights.safetensors"
        save_file(saved, folder / path, {"format": "pt", "note": "a text"})
    else:
        path = "model"
        write_folder(folder / path, saved, form)
    return {
        **models.truth_of(net),
        "weights": weights,
        "aliases": aliases,
        "format": "model",
        "input": path,
        "about": f"{form}{', legacy' * legacy}{', in a dict' * (wrapped == 'model')}{', views' * views}, {chosen}, {features}",
    }


def write_folder(folder, weights, form):
    from safetensors.torch import save_file

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "zoo", "hidden_size": 4}))
    stem, ending = ("model", "safetensors") if "safetensors" in form else ("pytorch_model", "bin")

    def write(part, name):
        if ending == "bin":
            torch.save(part, folder / name)
        else:
            save_file(part, folder / name, {"format": "pt"})

    if "folder" in form:
        return write(weights, f"{stem}.{ending}")
    keys, count = list(weights), 2
    names = [f"{stem}-{i + 1:05d}-of-{count:05d}.{ending}" for i in range(count)]
    parts = [keys[i::count] for i in range(count)]
    for part, name in zip(parts, names):
        write({key: weights[key] for key in part}, name)
    index = {"metadata": {"total_size": 1}, "weight_map": {key: name for part, name in zip(parts, names) for key in part}}
    (folder / f"{stem}.{ending}.index.json").write_text(json.dumps(index))


def lightning(folder, rng):
    """A .ckpt of Lightning's Trainer: one or two optimizers, averaged weights, a compiled model, hyper-parameters."""
    import lightning as L
    from lightning.pytorch.callbacks import ModelCheckpoint

    features = models.draw(rng, ("tied", "frozen", "batchnorm", "buffer", "scalar", "deep"))
    kind, style = rng.choice(models.COMMON), rng.choice(("one", "one", "two", "averaged", "compiled"))

    class Module(L.LightningModule):
        def __init__(self, width=3):
            super().__init__()
            self.save_hyperparameters()
            self.automatic_optimization = style != "two"
            self.net = models.make_net(rng, features)
            if style == "two":
                self.critic = models.make_net(rng, [])

        def training_step(self, ids, _):
            if style != "two":
                return self.net(ids)
            for optimizer, net in zip(self.optimizers(), (self.net, self.critic)):
                optimizer.zero_grad()
                self.manual_backward(net(ids % net.vocabulary))
                optimizer.step()

        def configure_optimizers(self):
            parameters, self.way = models.arrange(self.net, rng, ("one", "decay", "shuffled"))
            optimizer = models.OPTIMIZERS[kind](parameters)
            if style == "two":
                return [optimizer, models.OPTIMIZERS[kind](self.critic.parameters())]
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

        def train_dataloader(self):
            return torch.utils.data.DataLoader([models.batch(self.net, 0, i) for i in range(3)], batch_size=None)

    callbacks = [ModelCheckpoint(dirpath=folder / "unused", save_top_k=0)]
    if style == "averaged":
        from lightning.pytorch.callbacks import EMAWeightAveraging

        callbacks.append(EMAWeightAveraging(decay=0.5))
    module = Module()
    if style == "compiled":
        module.net = torch.compile(module.net, backend="eager")
    trainer = L.Trainer(
        max_steps=2 * (2 if style == "two" else 1),
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
        default_root_dir=folder,
        enable_checkpointing=True,
    )
    trainer.fit(module)
    trainer.save_checkpoint(folder / "last.ckpt")
    saved = torch.load(folder / "last.ckpt", weights_only=False)
    bare = {key: key.replace("_orig_mod.", "") for key in saved["state_dict"]}
    optimizers = [optimizer.optimizer if hasattr(optimizer, "optimizer") else optimizer for optimizer in trainer.optimizers]
    truth = models.truth_of(module, optimizers[0])
    if len(optimizers) == 2:
        second = models.truth_of(module, optimizers[1])
        truth = {
            **truth,
            "states": {**truth["states"], **second["states"]},
            "order": truth["order"] + second["order"],
            "groups": truth["groups"] + second["groups"],
        }
    for key in ("states",):
        truth[key] = {name.replace("_orig_mod.", ""): value for name, value in truth[key].items()}
    truth["order"] = [name.replace("_orig_mod.", "") for name in truth["order"]]
    truth["groups"] = [{**group, "params": [name.replace("_orig_mod.", "") for name in group["params"]]} for group in truth["groups"]]
    truth["aliases"] = {second.replace("_orig_mod.", ""): first.replace("_orig_mod.", "") for second, first in truth["aliases"].items()}
    truth["weights"] = {bare[key]: models.copied(value) for key, value in saved["state_dict"].items()}
    others = [f"current_model_state.{key}" for key in saved.get("current_model_state", {})]
    return {
        **truth,
        "format": "torch",
        "input": "last.ckpt",
        "others": others,
        "optimizer": None if style == "two" else kind,
        "about": f"{style}, {kind}, {module.way}, {features}",
    }


def bitsandbytes(folder, rng):
    """Optimizers of bitsandbytes, whose states newer versions keep in a dict of their own; or a base of its quantized weights."""
    import bitsandbytes as bnb
    from . import hub

    old = bnb.__version__ < "0.46"
    if rng.random() < 0.4 and not old:
        return quantized_base(folder, rng, bnb)
    torch.manual_seed(rng.randrange(1 << 30))
    net = torch.nn.Sequential(
        torch.nn.Embedding(rng.choice((16, 300)), 64),
        torch.nn.Linear(64, rng.choice((64, 96))),
        torch.nn.LayerNorm(64) if rng.random() < 0.3 else torch.nn.Identity(),
    )
    if isinstance(net[2], torch.nn.LayerNorm):
        net[1] = torch.nn.Linear(64, 64)
    kind = rng.choice(
        ("AdamW8bit", "Adam8bit", "AdamW", "Lion8bit", "SGD8bit", "RMSprop8bit", "AdEMAMix8bit", "PagedAdamW8bit", "Adagrad8bit")
    )
    options = {"min_8bit_size": 16} if kind.endswith("8bit") else {}
    if kind in ("SGD8bit",):
        options["momentum"] = 0.9
    groups = (
        net.parameters()
        if rng.random() < 0.5
        else [{"params": list(net[0].parameters())}, {"params": list(net[1:].parameters()), "weight_decay": 0.1}]
    )
    optimizer = getattr(bnb.optim, kind)(groups, lr=1e-3, **options)
    if old:  # it has no steps for the CPU: its own states, with numbers as after a step
        torch.cuda.synchronize = lambda *ignored: None
        optimizer.update_step = lambda group, p, gindex, pindex: None
    for step in range(2):
        net(torch.arange(8).view(2, 4) + step).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if old:
        with torch.no_grad():
            for number, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
                state = optimizer.state[p]
                for key, value in state.items():
                    if isinstance(value, torch.Tensor) and "qmap" not in key:
                        value.copy_(torch.rand(value.shape) * 100)
                state["step"] = 2
    form = rng.choice(("trainer", "torch", "accelerate"))
    about = f"bitsandbytes {bnb.__version__} {kind}, {form}"
    truth = models.truth_of(net, optimizer, about=about, format=form)
    truth["states"] = {name: flattened(state) for name, state in truth["states"].items()}
    return {**truth, **hub.write_training(folder, form, net.state_dict(), optimizer.state_dict(), 2)}


def flattened(state):
    """The states of a parameter without the dict of their own that bitsandbytes has since 0.50."""
    inner = state.get("__bnb_optimizer_quant_state__", {})
    return {**{key: value for key, value in state.items() if not isinstance(value, dict)}, **inner}


def quantized_base(folder, rng, bnb):
    from safetensors.torch import save_file

    torch.manual_seed(rng.randrange(1 << 30))
    kind = rng.choice(("nf4", "fp4", "int8"))
    net = torch.nn.ModuleDict({"norm": torch.nn.LayerNorm(64)})
    if kind == "int8":
        net["base"] = bnb.nn.Linear8bitLt(64, 64, bias=rng.random() < 0.5, has_fp16_weights=False)
        net["base"].load_state_dict(torch.nn.Linear(64, 64, bias=net["base"].bias is not None).state_dict())
    else:
        net["base"] = bnb.nn.Linear4bit(64, 64, bias=rng.random() < 0.5, quant_type=kind, compute_dtype=torch.float32)
        net["base"].weight = bnb.nn.Params4bit(
            torch.randn(64, 64), requires_grad=False, quant_type=kind, compress_statistics=rng.random() < 0.7, module=net["base"]
        )
    net.to("cpu")
    if kind == "int8":
        weight = net["base"].weight
        if weight.dtype != torch.int8:  # quantized on the way to a GPU only
            quantized, statistics, _ = bnb.functional.int8_vectorwise_quant(weight.data.half())
            net["base"].weight = bnb.nn.Int8Params(quantized, requires_grad=False, has_fp16_weights=False, CB=quantized, SCB=statistics)
    weights = {key: value.detach().clone() for key, value in net.state_dict().items()}
    dequantized = {key: value for key, value in weights.items() if key.startswith("norm.") or key == "base.bias"}
    base = net["base"].weight
    dequantized["base.weight"] = (
        bnb.functional.int8_vectorwise_dequant(base.data, base.SCB)
        if kind == "int8"
        else bnb.functional.dequantize_4bit(base.data, base.quant_state) + 0.0  # fp4's second zero is -0 on some processors
    )
    weights = {
        key: torch.Tensor(value) if type(value) is not torch.Tensor and value.dtype == torch.float32 else value.as_subclass(torch.Tensor)
        for key, value in weights.items()
    }
    save = rng.choice(("safetensors", "pt"))
    if save == "pt":
        torch.save(weights, folder / "weights.pt")
    else:
        save_file(weights, folder / "weights.safetensors", {"format": "pt"})
    return {
        **models.truth_of(torch.nn.Module()),
        "weights": weights,
        "format": "model",
        "input": f"weights.{save}",
        "quantized": True,
        "dequantized": {key: models.copied(value) for key, value in dequantized.items()},
        "about": f"bitsandbytes {bnb.__version__} {kind} base, {save}",
    }


def torchao(folder, rng):
    """Optimizers of torchao, whose states are subclasses of tensors; or its quantized weights."""
    import torchao.optim as optimizers

    torch.manual_seed(rng.randrange(1 << 30))
    if rng.random() < 0.5:
        from torchao import quantization

        kind = rng.choice(("Int8WeightOnlyConfig", "Float8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"))
        net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 32)).bfloat16()
        quantization.quantize_(net, getattr(quantization, kind)(), filter_fn=lambda module, name: name == "0")
        state = {"model": net.state_dict(), "epoch": 1} if rng.random() < 0.5 else net.state_dict()
        torch.save(state, folder / "weights.pt")
        truth = models.truth_of(torch.nn.Module(), about=f"torchao {kind}", format="model", input="weights.pt", quantized=True)
        return {
            **truth,
            "weights": {key: models.copied(value) for key, value in net.state_dict().items() if type(value) is torch.Tensor},
            "subclasses": [key for key, value in net.state_dict().items() if type(value) is not torch.Tensor],
        }
    kind = rng.choice(("AdamW8bit", "AdamW4bit", "AdamWFp8", "Adam8bit"))
    net = torch.nn.Sequential(torch.nn.Linear(128, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 128))
    optimizer = getattr(optimizers, kind)(net.parameters(), lr=1e-3)
    torch.compile = lambda function, **options: function  # which has no compiler to wait for
    for _ in range(2):
        net(torch.randn(2, 128)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    from . import hub

    form = rng.choice(("torch", "trainer"))
    truth = models.truth_of(net, optimizer, format=form, about=f"torchao {kind}, {form}")
    truth["subclasses"] = [
        f"{name}.{key}"
        for name, state in truth["states"].items()
        for key, value in state.items()
        if isinstance(value, torch.Tensor) and type(value) is not torch.Tensor
    ]
    truth["states"] = {
        name: {key: value for key, value in state.items() if f"{name}.{key}" not in truth["subclasses"]}
        for name, state in truth["states"].items()
    }
    return {**truth, **hub.write_training(folder, form, net.state_dict(), optimizer.state_dict(), 2)}


def galore(folder, rng):
    """GaLore, a state of which is an object with tensors."""
    from galore_torch import GaLoreAdamW
    from . import hub

    torch.manual_seed(rng.randrange(1 << 30))
    net = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 6))
    low = [net[0].weight, net[2].weight]
    optimizer = GaLoreAdamW(
        [
            {"params": [p for p in net.parameters() if p.dim() == 1]},
            {
                "params": low,
                "rank": 2,
                "update_proj_gap": 2,
                "scale": 0.25,
                "proj_type": rng.choice(("std", "reverse_std", "right", "left", "full")),
            },
        ],
        lr=1e-2,
    )
    for _ in range(3):
        net(torch.randn(4, 12)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    form = rng.choice(("torch", "trainer", "accelerate"))
    truth = models.truth_of(net, optimizer, format=form, about=f"GaLore, {form}")
    truth["subclasses"] = [f"{name}.projector" for name, state in truth["states"].items() if "projector" in state]
    truth["states"] = {name: {key: value for key, value in state.items() if key != "projector"} for name, state in truth["states"].items()}
    return {**truth, **hub.write_training(folder, form, net.state_dict(), optimizer.state_dict(), 3)}
