#!/usr/bin/env python3
"""Checkpoints of torch in the arrangements that people use go through UniShard into the same format, and torch loads the result
under its old keys: every tensor bit by bit, every other value equal and of the same type. (A dict of tensors may become an
OrderedDict, which torch's own state_dict() returns.)

  torch_keeps.py BUILD
  torch_keeps.py --write FOLDER    only writes the inputs there

Exit status: 0 all equal, 1 something differs, 77 something is not installed.
"""
import argparse
import collections
import datetime
import decimal
import pathlib
import sys
import tempfile
import warnings

import truth


def odd_values():
    """Values of client states that JSON lacks."""
    import numpy as np
    import torch
    return {"float64": np.float64(2.5), "array": np.arange(6).reshape(2, 3), "generator": np.random.RandomState(3).get_state(),
            "date": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc), "span": datetime.timedelta(days=2),
            "path": pathlib.PurePosixPath("/a/b"), "arguments": argparse.Namespace(lr=.1, name="x"), "price": decimal.Decimal("1.50"),
            "set": {1, 2}, "frozenset": frozenset([3]), "slice": slice(1, 5, 2), "range": range(3), "size": torch.Size([2, 3]),
            "dtype": torch.bfloat16, "device": torch.device("cpu"), "complex": 1 + 2j, "large": 2**200, "bytes": b"\x00\xff",
            "bytearray": bytearray(b"q"), "inf": [float("inf"), None, True]}


def trained(steps=3, seed=1):
    """A model and its optimizer after some steps."""
    import torch
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def two_models(states_of):
    """A generator and a discriminator, each with an optimizer."""
    (gen, opt_g), (disc, opt_d) = (states_of(*trained(seed=seed)) for seed in (3, 4))
    return {"gen": dict(gen), "disc": dict(disc), "opt_g": opt_g, "opt_d": opt_d, "epoch": 1}


def state_dicts():
    """Name -> state dict, as applications arrange them."""
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, get_state_dict
    model, optimizer = trained()
    weights, states = get_state_dict(model, optimizer)
    flat = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    train_state = {"step": torch.tensor(7, dtype=torch.int32), "losses": b"\x80\x04K\x01.", "seen": 7}
    return {
        "titan": {**weights, **{f"optimizer.{key}": value for key, value in flat.items()},
                  "lr_scheduler": {"last_epoch": 3, "_last_lr": [0.001]}, "train_state": train_state},
        "app": {"app": {"model": weights, "optim": states, "epoch": 4}},
        "model_optim": {"model": weights, "optim": states},
        "flat_optimizer": {"model": weights, "optimizer": flat, "extra": {"list": [1, 2, torch.ones(3)], "tuple": (1, 2)}},
        "flat": dict(weights),
        "values": {"model": weights, "optim": states, "odd": odd_values()},
        "numbered": {"model": weights, "raw_optim": optimizer.state_dict()},
        "counting_in_int": {"model": weights, "optim": {**states, "state": {name: {**each, "step": 3, "decay": 0.5, "seen": 2}
                                                                            for name, each in states["state"].items()}}},
        "nested_deeper": {"model": weights, "optim": {"state": states}},
        "two_models": two_models(get_state_dict),
        "two_numbered_models": two_models(lambda model, optimizer: (model.state_dict(), optimizer.state_dict())),
        "two_optimizers_of_one_model": {"model": weights, "optimizers": [optimizer.state_dict(), trained(seed=2)[1].state_dict()]},
    }


def blank(value):
    """The same arrangement without the values."""
    import torch
    if isinstance(value, torch.Tensor):
        return torch.full_like(value, float("nan")) if value.is_floating_point() else torch.zeros_like(value)
    if isinstance(value, dict):
        return type(value)((key, blank(child)) for key, child in value.items())
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(blank(child) for child in value)
    return "nothing was loaded"


def differences(a, b, path=""):
    import numpy as np
    import torch
    if type(a) is not type(b) and not (type(a) is dict and isinstance(b, collections.OrderedDict)):
        return [f"{path}: {type(a).__name__} became {type(b).__name__}"]
    if isinstance(a, torch.Tensor):
        if a.requires_grad != b.requires_grad:
            return [f"{path}: requires_grad became {b.requires_grad}"]
        return [] if a.dtype == b.dtype and truth.same_bits(a.detach(), b.detach().numpy()) else [f"{path}: a tensor differs"]
    if isinstance(a, np.ndarray):
        return [] if a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() else [f"{path}: an array differs"]
    if isinstance(a, dict):
        if list(a) != list(b):
            return [f"{path}: other keys: {sorted(map(str, set(a) ^ set(b)))}"]
        return [line for key in a for line in differences(a[key], b[key], f"{path}.{key}")]
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return [f"{path}: {len(a)} items became {len(b)}"]
        return [line for i, pair in enumerate(zip(a, b)) for line in differences(*pair, f"{path}[{i}]")]
    return [] if a == b else [f"{path}: {a!r} became {b!r}"]


def write_inputs(folder):
    import torch
    import torch.distributed.checkpoint as dcp
    for name, state in state_dicts().items():
        dcp.save(state, checkpoint_id=folder / name, no_dist=True)
        torch.save(state, folder / f"{name}.pt")


def script_arrangements(model, optimizer):
    """--dcp-layout -> what a training script of that kind passes to dcp.load."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, get_state_dict
    weights, states = get_state_dict(model, optimizer)
    flat = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    return {"model-optim": {"model": weights, "optim": states}, "app": {"app": {"model": weights, "optim": states}},
            "flat": {**weights, "optim": states}, "titan": {**weights, "optimizer": flat, "train_state": {"step": 0}}}


def layout_rows(unishard, source, folder, row):
    """A checkpoint with the keys of each kind of script, loaded by such a script into a fresh model and optimizer."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict
    wanted = script_arrangements(*trained())
    for layout in wanted:
        truth.run(unishard, "convert", source, folder / layout, "--to", "dcp", "--dcp-layout", layout, "-w", "2")
        model, optimizer = trained(steps=1, seed=9)
        loaded = script_arrangements(model, optimizer)[layout]
        dcp.load(loaded, checkpoint_id=folder / layout, no_dist=True)
        if layout == "titan":
            wanted[layout]["train_state"]["step"] = 3
        found = differences(wanted[layout], loaded)
        inner = loaded.get("app", loaded)
        weights = inner.get("model", {key: value for key, value in loaded.items() if key in model.state_dict()})
        states = inner.get("optim", inner.get("optimizer"))
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states,
                       options=StateDictOptions(flatten_optimizer_state_dict=layout == "titan"))
        truth_model, truth_optimizer = trained()
        found += differences(dict(truth_model.state_dict()), dict(model.state_dict()))
        found += differences(truth_optimizer.state_dict()["state"], optimizer.state_dict()["state"])
        row(f"--dcp-layout {layout}", found)
        truth.run(unishard, "reshard", folder / layout, folder / f"{layout}-3", "-w", "3")
        again = script_arrangements(*trained(steps=1, seed=9))[layout]
        dcp.load(again, checkpoint_id=folder / f"{layout}-3", no_dist=True)
        row(f"--dcp-layout {layout}, resharded", differences(wanted[layout], again))


def titan_row(unishard, source, folder, row):
    """torchtitan loads its counter of steps as a tensor, also from a folder that was a UniShard checkpoint in between."""
    import torch.distributed.checkpoint as dcp
    truth.run(unishard, "convert", source, folder / "titan-native", "--to", "native")
    truth.run(unishard, "convert", folder / "titan-native", folder / "titan-again", "--to", "dcp")
    state = state_dicts()["titan"]
    loaded = blank(state)
    dcp.load(loaded, checkpoint_id=folder / "titan-again", no_dist=True)
    row("titan through native", differences(state, loaded))


def own_keys_rows(unishard, folder, row):
    """A training file of a script's own keys comes back from other formats as a file that the script resumes from."""
    import torch
    model, optimizer = trained()
    average = {key: value + 1 for key, value in model.state_dict().items()}
    state = {"iter_num": 3, "state_dict": dict(model.state_dict()), "opt": optimizer.state_dict(), "best_loss": torch.tensor(0.5),
             "state_dict_ema": average, "args": argparse.Namespace(arch="vit", betas=(0.9, 0.95)), "scaler": {"scale": 65536.0, "history": [None, True]}}
    torch.save(state, folder / "own.pt")
    for form in ("native", "dcp", "hdf5"):
        truth.run(unishard, "convert", folder / "own.pt", folder / f"own.{form}", "--to", form)
        truth.run(unishard, "convert", folder / f"own.{form}", folder / f"own.{form}.pt", "--to", "torch")
        loaded = torch.load(folder / f"own.{form}.pt", weights_only=False)
        loaded.pop("unishard")
        row(f"torch.save own keys through {form}", differences(state, loaded))


def arrangements():
    """Name -> object of a torch.save file, as scripts arrange more than one model and one optimizer."""
    import torch
    (gen, opt_g), (disc, opt_d) = trained(seed=3), trained(steps=2, seed=4)
    weights, states = dict(gen.state_dict()), opt_g.state_dict()
    score, both = torch.tensor(0.5), {"model": gen.state_dict(), "optimizer": states}
    checkpoint = "ModelCheckpoint{'monitor': 'val.loss'}"
    lightning = {"epoch": 1, "state_dict": gen.state_dict(), "callbacks": {checkpoint: {"best_model_score": score, "current_score": score}},
                 "optimizer_states": [states], "lr_schedulers": [{"last_epoch": 2, "_last_lr": [0.1]}]}
    networks = {"netG": gen.state_dict(), "netD": disc.state_dict()}
    return {
        "one tensor under two keys": {**both, "best": score, "last": score, "best_model": gen.state_dict()},
        "lightning": lightning,
        "lightning, two optimizers": {**lightning, "optimizer_states": [states, opt_d.state_dict()],
                                      "state_dict": {f"{name}.{key}": value for name, model in (("gen", gen), ("disc", disc))
                                                     for key, value in model.state_dict().items()}},
        "a key with a dot": {**both, "epoch": 3, "val.loss": 0.5},
        "keys that are no text": {**both, 0: {"lr": 0.1}, "0": 1, (1, 2): "pair", None: score},
        "a GAN": {**networks, "optimizerG": states, "optimizerD": opt_d.state_dict(), "epoch": 2, "fixed_noise": torch.ones(2, 3)},
        "a GAN in lists": {"models": list(networks.values()), "optimizers": [states, opt_d.state_dict()]},
        "a GAN in tuples": {"models": tuple(networks.values()), "optimizers": (states, opt_d.state_dict())},
        "a model below its key": {"state_dict": gen.state_dict()},
        "a model below its key, with more": {"model_state_dict": weights, "epoch": 3},
        "an optimizer alone": states,
        "nested dicts": {**both, "scheduler": collections.OrderedDict(last_epoch=3, ema=collections.OrderedDict(x=torch.ones(2)))},
        "parameters and gradients": {**both, "log_alpha": torch.zeros(1, requires_grad=True), "temperature": torch.nn.Parameter(torch.ones(2)),
                                     "frozen": torch.nn.Parameter(torch.ones(3).half(), requires_grad=False)},
        "a learning rate in a tensor": {"model": gen.state_dict(), "optimizer": {
            **states, "param_groups": [{**group, "lr": torch.tensor(group["lr"])} for group in states["param_groups"]]}},
    }


def arrangement_rows(unishard, folder, row):
    """Files of every arrangement come back from other formats with the same keys, classes and values."""
    import torch
    for number, (name, state) in enumerate(arrangements().items()):
        source = folder / f"arrangement{number}.pt"
        torch.save(state, source)
        found = []
        for form in ("torch", "native", "dcp", "hdf5"):
            between, back = folder / f"between{number}.{'pt' if form == 'torch' else form}", folder / f"arrangement{number}.{form}.pt"
            truth.run(unishard, "convert", source, between, "--to", form)
            truth.run(unishard, "convert", between, back, "--to", "torch")
            loaded = torch.load(back, weights_only=False)
            loaded.pop("unishard", None)
            found += [f"through {form}: {line}" for line in differences(state, loaded)]
        row(f"torch.save {name}", found)


def folder_differences(state, original, result):
    """How a DCP folder that was made of another one differs in its keys, and in what dcp.load() finds."""
    import torch.distributed.checkpoint as dcp
    loaded = blank(state)
    dcp.load(loaded, checkpoint_id=result, no_dist=True)
    return [*(["other keys in .metadata"] if keys_of(original) != keys_of(result) else []), *differences(state, loaded)]


def parameters_row(unishard, folder, row):
    """A flat dict of parameters, some of them frozen, comes back through the formats that keep what a file records."""
    import torch
    state = {"w": torch.nn.Parameter(torch.ones(2, 3)), "frozen": torch.nn.Parameter(torch.ones(3), requires_grad=False), "b": torch.zeros(2)}
    torch.save(state, folder / "parameters.pt")
    for form in ("native", "dcp"):
        truth.run(unishard, "convert", folder / "parameters.pt", folder / f"parameters.{form}", "--to", form)
        truth.run(unishard, "convert", folder / f"parameters.{form}", folder / f"parameters.{form}.pt", "--to", "torch")
        loaded = torch.load(folder / f"parameters.{form}.pt", weights_only=False)
        row(f"torch.save a dict of parameters through {form}", differences(state, loaded))


def optimizer_rows(unishard, folder, row):
    """The state of each of torch's optimizers comes back from other formats, under a model that torch.compile has wrapped too."""
    import torch
    names = ("AdamW", "Adam", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD", "LBFGS", "Adafactor")
    settings = {"SGD": {"lr": 0.1, "momentum": 0.9}, "RMSprop": {"centered": True, "momentum": 0.5}, "Adam": {"amsgrad": True}}
    for name in names:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 5, bias=False))
        optimizer = getattr(torch.optim, name)(model.parameters(), **settings.get(name, {}))

        def loss():
            optimizer.zero_grad()
            value = model(torch.ones(6, 4) * torch.arange(6).unsqueeze(1)).pow(2).sum()
            value.backward()
            return value
        for _ in range(3):
            optimizer.step(loss)
        weights = model.state_dict()
        if name == "AdamW":
            weights = type(weights)((f"_orig_mod.{key}", value) for key, value in weights.items())
        state = {"model": weights, "optimizer": optimizer.state_dict(), "epoch": 3}
        torch.save(state, folder / f"{name}.pt")
        found = []
        for form in ("native", "dcp", "hdf5"):
            truth.run(unishard, "convert", folder / f"{name}.pt", folder / f"{name}.{form}", "--to", form)
            truth.run(unishard, "convert", folder / f"{name}.{form}", folder / f"{name}.{form}.pt", "--to", "torch")
            loaded = torch.load(folder / f"{name}.{form}.pt", weights_only=False)
            loaded.pop("unishard")
            found += [f"through {form}: {line}" for line in differences(state, loaded)]
        row(f"torch.save with {name}", found)


class Trainer:
    """An object that its parts refer back to, as trainers do."""

    def __init__(self):
        self.model = argparse.Namespace(trainer=self)


def odd_members_rows(unishard, folder, row):
    """Members that the tools cannot write out cost nothing else, and dicts of other classes stay what they are."""
    import torch
    model, optimizer = trained()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "counts": collections.Counter("aab"),
             "lists": collections.defaultdict(list, a=[1]), "epoch": 4}
    loop, deep = [1], None
    loop.append(loop)
    for _ in range(250):
        deep = {"child": deep}
    torch.save({**state, "trainer": Trainer(), "loop": loop, "deep": deep}, folder / "odd.pt")
    said = truth.run("sh", "-c", '"$0" "$@" 2>&1', unishard, "convert", folder / "odd.pt", folder / "odd.out.pt", "--to", "torch")
    loaded = torch.load(folder / "odd.out.pt", weights_only=False)
    if loaded.pop("deep", None) != {"child": {}}:
        row("torch.save odd members", ["the levels near the root are gone"])
    named = {key: (f"{key}: ", f'"{key}": ', f'"{key}.') for key in ("trainer", "loop", "deep")}
    found = differences(state, loaded) + [f"{key} is not named" for key, words in named.items() if not any(each in said for each in words)]
    row("torch.save odd members", found if loaded.get("lists", {}).default_factory is list else [*found, "the factory is gone"])


def keys_of(folder):
    from torch.distributed.checkpoint import FileSystemReader
    metadata = FileSystemReader(folder).read_metadata()
    return set(metadata.state_dict_metadata), metadata.planner_data


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path, nargs="?")
    parser.add_argument("--write", type=pathlib.Path)
    arguments = parser.parse_args()
    truth.require("torch.distributed.checkpoint")
    import torch
    warnings.filterwarnings("ignore")
    if arguments.write:
        write_inputs(arguments.write)
        return 0
    unishard = arguments.build / "bin/unishard"
    failed = 0

    def row(name, found):
        nonlocal failed
        failed += bool(found)
        print(f"{name:40} {'equal' if not found else 'DIFFERS: ' + '; '.join(found[:4])}", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        write_inputs(folder)
        for name, state in state_dicts().items():
            truth.run(unishard, "reshard", folder / name, folder / "new" / name, "-w", "3")
            row(f"dcp {name}", folder_differences(state, folder / name, folder / "new" / name))
            truth.run(unishard, "convert", folder / name, folder / "native" / name, "--to", "native")
            truth.run(unishard, "convert", folder / "native" / name, folder / "later" / name, "--to", "dcp")
            row(f"dcp {name} through native", folder_differences(state, folder / name, folder / "later" / name))
            truth.run(unishard, "convert", folder / f"{name}.pt", folder / "new" / f"{name}.pt", "--to", "torch")
            row(f"torch.save {name}", differences(state, torch.load(folder / "new" / f"{name}.pt", weights_only=False)))
        own_keys_rows(unishard, folder, row)
        arrangement_rows(unishard, folder, row)
        parameters_row(unishard, folder, row)
        optimizer_rows(unishard, folder, row)
        odd_members_rows(unishard, folder, row)
        layout_rows(unishard, folder / "model_optim", folder / "layouts", row)
        titan_row(unishard, folder / "titan", folder / "layouts", row)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
