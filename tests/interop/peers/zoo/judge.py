"""Takes the input of a maker every path through UniShard and compares what arrives with the truth: equal, or named, or refused."""

import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import types

import torch

from . import models

Verdict = collections.namedtuple("Verdict", "path problems refused named")
KEPT = "kept as values"  # what UniShard says of an optimizer whose states it cannot name
QUANTIZED = "__bnb_optimizer_quant_state__"  # a dict of states
DEFAULTS = {
    "amsgrad",
    "maximize",
    "foreach",
    "capturable",
    "differentiable",
    "fused",
    "decoupled_weight_decay",
    "betas",
    "eps",
    "weight_decay",
}
WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
CHAINS = {
    "torch": (
        ("native",),
        ("dcp",),
        ("hdf5",),
        ("npz",),
        ("trainer",),
        ("safetensors",),
        ("deepspeed",),
        ("deepspeed-universal",),
        ("native", "dcp"),
    ),
    "trainer": (
        ("native",),
        ("dcp",),
        ("accelerate",),
        ("torch",),
        ("deepspeed",),
        ("hdf5",),
        ("safetensors",),
        ("native", "torch", "dcp"),
    ),
    "accelerate": (("native",), ("dcp",), ("trainer",), ("torch",), ("deepspeed",), ("dcp", "native")),
    "dcp": (("native",), ("torch",), ("hdf5",), ("deepspeed",), ("safetensors",), ("trainer",), ("native", "torch")),
    "deepspeed": (("native",), ("dcp",), ("torch",), ("deepspeed-universal",), ("trainer",), ("hdf5",), ("native", "dcp")),
    "model": (("native",), ("dcp",), ("hdf5",), ("npz",), ("safetensors",), ("torch",), ("gguf",)),
    "ranks": (),
    "megatron": (),
}
ENDINGS = {"torch": ".pt", "hdf5": ".h5", "npz": ".npz", "gguf": ".gguf", "safetensors": ".safetensors"}


# ---- equality ------------------------------------------------------------------------------------------------------


def bits(tensor):
    tensor = tensor.detach().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def same(expected, found, may_widen=False):
    """Equal bit by bit; with may_widen also as the float32 of a floating-point value."""
    if expected.shape != found.shape:
        return False
    if expected.dtype == found.dtype and bits(expected) == bits(found):
        return True
    return may_widen and found.dtype == torch.float32 and expected.is_floating_point() and bits(expected.float()) == bits(found)


def shown(tensor):
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def what_differs(expected, found):
    return f"is {shown(found)} instead of {shown(expected)}" if shown(found) != shown(expected) else "has other values"


def parts_of(value):
    """A subclass of a tensor as a dict of its parts."""
    names, rest = value.__tensor_flatten__()
    return {**{name: getattr(value, name) for name in names}, "rest": str(rest)}


def differences(a, b, path=()):
    """[(path, what)] of two objects of torch.load; a dict of another class is equal."""
    if isinstance(a, torch.Tensor) and hasattr(a, "__tensor_flatten__") and type(a) is type(b):
        return differences(parts_of(a), parts_of(b), path)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return [] if same(a, b) else [(path, f"{shown(a)} became {shown(b)}" if shown(a) != shown(b) else "has other values")]
    if isinstance(a, dict) and isinstance(b, dict):
        found = [(path + (key,), "is lost") for key in a if key not in b]
        found += [(path + (key,), "is new") for key in b if key not in a]
        return found + [row for key in a if key in b for row in differences(a[key], b[key], path + (key,))]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return [(path, f"{len(a)} items became {len(b)}")]
        return [row for i, pair in enumerate(zip(a, b)) for row in differences(*pair, path + (i,))]
    if type(a) is not type(b) and not (isinstance(a, (int, float)) and isinstance(b, (int, float))):
        return [(path, f"{type(a).__name__} became {type(b).__name__}")]
    try:
        equal = (
            vars(a) == vars(b)
            if isinstance(a, types.SimpleNamespace) or type(a).__name__ == "Namespace"
            else bool(a == b) or (a != a and b != b)
        )
    except Exception:
        equal = True  # an object that compares to nothing
    if not equal and hasattr(a, "__dict__") and not callable(a):
        return differences(vars(a), vars(b), path)
    return [] if equal else [(path, f"{a!r} became {b!r}"[:120])]


# ---- what was said -------------------------------------------------------------------------------------------------


def says(text, *names):
    """Whether the output has one of the names as a whole word, also where it spells numbered layers as {0..3}."""
    for name in names:
        name = str(name)
        if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w])", text) or re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", text):
            return True
    return False


def says_state(text, state):
    """Whether a line of the output is about all tensors of a state."""
    return any(says(line, state) and re.search(r"left out|not |cannot|only", line) for line in text.splitlines())


def is_named(text, path, truth):
    """Whether the output names the place of a file's object."""
    parts = [part for part in path if isinstance(part, str)]
    names = [part for part in parts if part in truth["weights"] or len(part) > 3 and part not in ("model", "optimizer", "state")]
    if path and isinstance(path[0], str) and "." in path[0]:  # a flattened key, of which the output names the whole
        names.append(f"client_state.{path[0].split('.')[0]}")
    for before, part in zip(path, path[1:]):
        if before == "state" and isinstance(part, int) and part < len(truth["order"]):
            names += [truth["order"][part], f"state.{part}", f"{part}"] if part else [truth["order"][part], f"state.{part}"]
    return says(text, *names) or any(says_state(text, part) for part in parts)


# ---- readers of results, all by the real libraries -----------------------------------------------------------------


def read_dcp(folder):
    """{key: value} of a DCP folder."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    metadata = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    flat = {
        key: torch.empty(item.size, dtype=item.properties.dtype) if isinstance(item, TensorStorageMetadata) else None
        for key, item in metadata.items()
    }
    dcp.load(flat, checkpoint_id=folder, no_dist=True)
    return flat


def read_model(path):
    """{name: tensor} of a model's file or folder, and its metadata."""
    from safetensors import safe_open

    path = pathlib.Path(path)
    files = (
        sorted(file for file in path.iterdir() if file.suffix in (".safetensors", ".bin") and "optimizer" not in file.name)
        if path.is_dir()
        else [path]
    )
    tensors, metadata = {}, {}
    for file in files:
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as opened:
                metadata.update(opened.metadata() or {})
                tensors.update({name: opened.get_tensor(name) for name in opened.keys()})
        else:
            loaded = torch.load(file, weights_only=False)
            tensors.update(loaded)
    return tensors, metadata


class Judge:
    """Runs PROGRAM on one input; `verdicts` holds one entry for each path."""

    def __init__(self, program, truth, folder, scratch):
        self.program, self.truth, self.scratch = program, truth, pathlib.Path(scratch)
        self.input = pathlib.Path(folder) / truth["input"]
        self.verdicts, self.chain = [], ()

    # ---- running

    def run(self, *arguments):
        environment = dict(os.environ, OMP_NUM_THREADS="1", NO_COLOR="1")
        done = subprocess.run([str(self.program), *map(str, arguments)], capture_output=True, env=environment, timeout=120)
        return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")

    def steps(self, *commands):
        """Runs commands in turn. Returns (text of all, problems, whether one refused)."""
        text = ""
        for command in commands:
            status, out, err = self.run(*command)
            text += out + err
            if status == 0:
                continue
            if status in (3, 4, 6) and "error:" in err:
                return text, [], True
            return text, [f"{command[0]} ends with status {status}: {last_line(err or out)}"], True
        return text, [], False

    def judge(self, path, commands, compare):
        """One path: `compare(text)` returns what is neither equal nor named."""
        text, problems, refused = self.steps(*commands)
        if not refused:
            try:
                problems = compare(text)
            except Exception as error:  # the real library does not read the result
                problems = [f"the result cannot be read: {type(error).__name__}: {str(error)[:200]}"]
        self.verdicts.append(Verdict(path, problems, text if refused else None, text))
        for place in self.scratch.iterdir():
            shutil.rmtree(place) if place.is_dir() else place.unlink()

    # ---- the paths

    def all(self):
        self.judge_inspect()
        self.judge_verify()
        form = self.truth["format"]
        folder = self.truth.get("adapter") or form in ("trainer", "accelerate") and "folder" or ""
        for path, arguments, may_widen, masters in (
            ("zero_to_fp32", ("zero_to_fp32",), True, True),
            ("convert --weights-only", ("convert", "--weights-only"), False, False),
        ):
            for ending in ("",) if folder == True else (".safetensors", ".pt"):  # noqa: E712
                target = self.scratch / f"model{ending}"
                command = (arguments[0], self.input, target, *arguments[1:])
                if not ending and arguments[0] == "convert":
                    command += ("--to", "safetensors")
                self.judge(
                    f"{path} to {ending or 'a folder'}",
                    [command],
                    lambda text: self.compare_model(*read_model(target), text, may_widen, masters),
                )
        for chain in CHAINS[form]:
            self.judge_chain(chain)
        if form != "model":
            self.judge_dcp()
        if form in ("deepspeed", "dcp"):
            self.judge_reshards()
        if self.truth.get("optimizer") not in (None, "lbfgs") and self.truth["states"] and form != "ranks":
            self.judge_resume()
        return self.verdicts

    def judge_verify(self):
        status, out, err = self.run("verify", self.input, "--deep")
        named = status == 1 and "incomplete" in out and all(says(out + err, name) for name in self.truth.get("subclasses", ("",)))
        problems = [] if status in (0, 3, 4, 6) or named else [f"verify ends with status {status}: {last_line(out + err)}"]
        self.verdicts.append(Verdict("verify --deep", problems, err if status in (3, 4, 6) else None, out + err))

    def judge_inspect(self):
        status, out, err = self.run("inspect", self.input, "--json")
        problems, refused = [], None
        if status in (3, 4, 6) and "error:" in err:
            refused = err
        elif status != 0:
            problems = [f"status {status}: {last_line(err)}"]
        else:
            problems = self.compare_catalog(json.loads(out), out + err + "".join(self.run("inspect", self.input)[1:]))
        self.verdicts.append(Verdict("inspect --json", problems, refused, out + err))

    def compare_catalog(self, catalog, text):
        truth, problems = self.truth, []
        names = set(map(bare, truth["weights"])) | set(map(bare, truth["aliases"]))
        values = [tensor for tensor in catalog["tensors"] if tensor["state"] in ("fp32", "weights", "buffer")]
        found = {tensor["name"] for tensor in values}
        if truth["format"] == "model" or truth.get(
            "adapter"
        ):  # a file of weights has the names of the file; an adapter those of its modules
            names |= set(truth["weights"])
        else:
            problems += [f"has a parameter {name} that the model does not have" for name in sorted(found - names)]
            problems += [
                f"has states of {tensor['name']}, which the model does not have"
                for tensor in catalog["tensors"]
                if tensor["state"] not in ("fp32", "weights", "buffer", "extra")
                and tensor["name"] not in names
                and not re.fullmatch(r"state\.\d+", tensor["name"])
            ][:3]
            have = found | set(catalog["aliases"])
            problems += [
                f"lacks {name} without a word" for name in sorted(names - have) if not says(re.sub(r'"name":[^,]*', "", text), name)
            ]
        # Some optimizers of DeepSpeed count a step more than the run, and one that is left out counts none.
        is_told = says(text, "the optimizer counts") or re.search("left out: optimizer states", text)
        if truth["step"] is not None and catalog["step"] != truth["step"] and KEPT not in text and not is_told:
            problems.append(f"step {catalog['step']} instead of {truth['step']}")
        groups = [[bare(name) for name in group["params"]] for group in truth["groups"]]
        told = [group.get("params", []) for group in catalog["groups"] or []]
        numbers = any(re.fullmatch(r"state\.\d+", str(name)) for group in told for name in group)
        if groups and told and not numbers and truth["format"] not in ("deepspeed", "megatron") and not truth.get("adapter"):
            if [sorted(resolve(group, catalog["aliases"])) for group in told] != [
                sorted(resolve(group, catalog["aliases"])) for group in groups
            ]:
                problems.append(f"groups {told} instead of {groups}"[:300])
            elif (
                truth["order"]
                and truth["format"] != "ranks"
                and [resolve(g, catalog["aliases"]) for g in told] != [resolve(g, catalog["aliases"]) for g in groups]
            ):
                problems.append(f"the order within groups is {told} instead of {groups}"[:300])
        return problems

    def compare_model(self, tensors, metadata, text, may_widen, masters):
        """A model file beside the weights of the truth."""
        truth, problems = self.truth, []
        if may_widen and "dequantized" in truth:  # zero_to_fp32 makes numbers of quantized weights
            truth = {**truth, "weights": truth["dequantized"]}
        compiled = [name for name in tensors if WRAPPERS.search(name)]
        if compiled and truth["format"] != "model":
            problems.append(f"{compiled[0]} has the name of a wrapper")
        tensors = {bare(name): value for name, value in tensors.items()}
        names = {bare(name): name for name in truth["weights"]}
        prefixes = "".join(
            sorted({prefix for prefix in ("module.", "model.") for name in tensors if name.startswith(prefix) and name not in names})
        )
        if prefixes and all(name.startswith(prefixes) for name in tensors):
            problems += [] if truth.get("prefix") == prefixes else [f"all names begin with {prefixes}"]
            tensors = {name.removeprefix(prefixes): value for name, value in tensors.items()}
        groups = collections.defaultdict(set)
        for second, first in truth["aliases"].items():
            groups[bare(first)] |= {bare(first), bare(second)}
        twins = {name: group for group in groups.values() for name in group}
        for name, own in names.items():
            present = [twin for twin in {name, *twins.get(name, ())} if twin in tensors]
            if name not in tensors and present:
                continue
            if name not in tensors:
                if not says(text, name, own) and own not in metadata:
                    problems.append(f"{name} is lost without a word")
                continue
            expected = truth["masters"].get(own) if masters and own in truth["masters"] else truth["weights"][own]
            value = tensors[name]
            is_master = own in truth["masters"] and same(truth["masters"][own], value)
            # The maker cannot ask every optimizer of DeepSpeed for its masters: the weights are their rounding.
            is_unknown_master = not truth.get("masters_known", True) and same(expected, value.to(expected.dtype))
            if not same(expected, value, may_widen) and not is_master and not is_unknown_master:
                problems.append(f"{name} {what_differs(expected, value)}")
        for name in truth.get("subclasses", ()):
            if (
                name not in tensors
                and name in truth.get("quantized_names", truth.get("subclasses", ()))
                and truth["format"] == "model"
                and not says(text, name)
            ):
                problems.append(f"{name} is lost without a word")
        problems += [
            f"has {name}, which the model does not have"
            for name in tensors
            if name not in names
            and name not in truth.get("subclasses", ())
            and not any(name == f"{known}{rest}" for known in truth.get("subclasses", ()) for rest in (".qdata", ".scale"))
        ]
        return problems

    # ---- chains

    def judge_chain(self, chain):
        form = self.truth["format"]
        own = {"model": "safetensors" if self.input.suffix == ".safetensors" else "torch"}.get(form, form)
        if form == "model":
            if self.input.is_dir() or chain == (own,) or chain[0] == "gguf" and len(chain) > 1:
                return
        commands, last = [], self.input
        for i, step in enumerate(chain):
            target = self.scratch / f"{i}{ENDINGS.get(step, '')}"
            target = target / "checkpoint-2" if step == "trainer" else target
            commands.append(("convert", last, target, "--to", step))
            last = target
        if form == "model" and own == "safetensors" and chain[-1] == "torch":
            own = "safetensors"
        target = self.scratch / {
            "torch": "back.pt",
            "safetensors": "back.safetensors",
            "trainer": "out/checkpoint-2",
            "accelerate": "out/checkpoint_0",
        }.get(own, "back")
        commands.append(("convert", last, target, "--to", own))
        compare = {
            "torch": self.compare_files,
            "model": self.compare_files,
            "trainer": self.compare_folders,
            "accelerate": self.compare_folders,
            "dcp": self.compare_dcp_folders,
            "deepspeed": self.compare_deepspeed,
        }[form]
        self.chain = chain
        self.judge(f"convert {', '.join((*chain, own))}", commands, lambda text: compare(target, text))
        self.chain = ()

    def unnamed(self, rows, text, allowed=()):
        """The differences that the output does not name."""
        problems = []
        through_deepspeed = "deepspeed" in self.chain  # fp32 masters come with it
        for path, what in rows:
            if any(str(part) in allowed for part in path):
                continue
            if what == "is new" and (
                "param_groups" in path and path[-1] in DEFAULTS or through_deepspeed and str(path[-1]).endswith("weights_16bit")
            ):
                continue
            of_groups = any("param_groups" in str(part) for part in path)
            if of_groups and re.search(r"parameter group \d+ .*left out", text):
                continue
            if of_groups and what in ("is lost", "is new") and len(path) == 1 and "param_groups.NUMBER.SETTING" in text:
                continue  # a setting of each parameter is one of its group then, as the output says
            if through_deepspeed and re.fullmatch(r"(bfloat16|float16) (\[.*\]) became float32 \2", what):
                continue
            if what == "is lost" and re.search(r"tensors of (neither model|state extra)", text) and not self.is_of_model(path):
                continue
            if what != "is new" and is_named(text, path, self.truth):
                continue
            problems.append(f"{'.'.join(map(str, path))} {what}")
        return problems

    def is_of_model(self, path):
        key = ".".join(map(str, path))
        return any(key.endswith(name) for name in self.truth["weights"]) and not key.startswith("ema") or ".state." in key

    def compare_files(self, target, text):
        """The object of a torch.save file, or a model file, beside the input's."""
        if self.input.suffix == ".safetensors":
            return self.compare_exact(read_model(target)[0], text)
        before, after = (torch.load(path, weights_only=False) for path in (self.input, target))
        if isinstance(after, dict):
            after.pop("unishard", None)
        if self.truth["format"] == "model" and isinstance(before, dict) and set(before) == {"model", "epoch"} and "model" not in after:
            before = before["model"]
        if "the arrangement of the torch.save file" in text:  # its keys are others then, as the output says
            return self.compare_rearranged(before, after, text)
        return self.unnamed(differences(before, after), text, ("param_names",))

    def compare_rearranged(self, before, after, text):
        problems = self.compare_model(after["model"], {}, text, False, True)
        for old, new in zip(optimizers_of(before), optimizers_of(after)):
            problems += self.unnamed(differences(old, new), text, ("param_names",))
        return problems

    def compare_exact(self, tensors, text):
        expected = self.truth["weights"]
        return self.unnamed(differences(expected, tensors), text)

    def compare_folders(self, target, text):
        """A folder of the Trainer or of accelerate beside the input."""
        problems = []
        before, after = ({file.name for file in folder.iterdir()} for folder in (self.input, target))
        models_before, models_after = (
            {name for name in names if re.match(r"(model|pytorch_model|adapter_model)(_\d+)?\.", name)} for names in (before, after)
        )
        for name in sorted(models_before):
            stem = name.rsplit(".", 1)[0]
            other = next((one for one in models_after if one.rsplit(".", 1)[0] in (stem, stem.replace("pytorch_model", "model"))), None)
            if other is None:
                told = says(text, name, stem, stem.replace("pytorch_model", "model")) or stem == "adapter_model" and says(text, "adapter_config.json")
                problems += [] if told else [f"{name} is lost without a word"]
                continue
            (old, _), (new, metadata) = read_model(self.input / name), read_model(target / other)
            rows = [
                (path, what)
                for path, what in differences(old, new)
                if not (what == "is lost" and path[-1] in metadata)
                and not (what == "is lost" and any(bare(str(path[-1])) in map(bare, pair) for pair in self.truth["aliases"].items()))
            ]
            problems += self.unnamed(rows, text)
        for name in sorted(name for name in before if name.startswith("optimizer")):
            if not (target / name).exists():
                problems += [] if says(text, name, name.rsplit(".", 1)[0]) else [f"{name} is lost without a word"]
                continue
            old, new = (torch.load(folder / name, weights_only=False) for folder in (self.input, target))
            problems += [f"{name}: {line}" for line in self.unnamed(differences(old, new), text, ("param_names", "unishard.catalog"))]
        for name in sorted(before - after - models_before):
            if not name.startswith("optimizer") and not says(text, name):
                problems.append(f"{name} is lost without a word")
        return problems

    def compare_dcp_folders(self, target, text):
        before, after = read_dcp(self.input), read_dcp(target)
        after.pop("unishard.catalog", None)
        moved = {}
        for key in [key for key in before if key not in after]:  # the same tensors where the program does not look for them
            other = re.sub(r"^(app\.|)(model|optim\w*)\.", lambda match: "model." if match[2] == "model" else "optim.", key)
            if "keys are model.NAME" in text and other not in after:  # of a model at the top level
                other = "model." + key
            if other in after and other not in before:
                moved[key.split(".state.")[0].split(".param_groups.")[0]] = (key, other)
                after[key] = after.pop(other)
        for key, other in [] if "--dcp-layout" in text else list(moved.values())[:1]:
            return [f"{key} is {other} without a word, and so are others: another layout"]
        problems = self.unnamed(differences(before, after), text)
        if (self.input / "meta.pt").exists() and not (target / "meta.pt").exists() and not says(text, "meta.pt"):
            problems.append("meta.pt is lost without a word")
        return problems

    def compare_deepspeed(self, target, text):
        """A run of DeepSpeed through its own script, and its client state."""
        truth, problems = self.truth, []
        files = sorted(target.glob("*/mp_rank_00_model_states.pt")) + sorted(target.glob("*/zero_pp_rank_0_mp_rank_00_model_states.pt"))
        model = torch.load(files[0], weights_only=False)
        for key, value in (("epoch", 2), ("note", "text"), ("values", [1, 2.5])):
            if model.get(key) != value and not says(text, key):
                problems.append(f"the client state has {key} {model.get(key)!r}")
        if truth["stage"] > 0 and deepspeed_merges(self.input) is not None:  # it does not read all of its own runs
            weights = deepspeed_merges(target) or {}
            frozen = {name: value for name, value in weights.items() if name not in truth["masters"]}
            rows = differences(
                {name: value for name, value in truth["masters"].items() if name not in truth["aliases"]},
                {name: value for name, value in weights.items() if name in truth["masters"] and name not in truth["aliases"]},
            )
            problems += self.unnamed(rows, text)
            problems += [f"has {name}, which the model does not have" for name in frozen if name not in truth["weights"]]
        text2, more, refused = self.steps(("convert", target, self.scratch / "states", "--to", "dcp"))
        return problems + (
            ["the result is refused: " + last_line(text2)] if refused else more + self.compare_states(self.scratch / "states", text + text2)
        )

    # ---- states by name

    def judge_dcp(self):
        """The optimizer's states under the names of the parameters, in a DCP folder that torch reads."""
        target = self.scratch / "dcp"
        self.judge(
            "convert to dcp, states by name",
            [("convert", self.input, target, "--to", "dcp", "--dcp-layout", "model-optim")],
            lambda text: self.compare_states(target, text) + self.compare_dcp_model(target, text),
        )

    def compare_dcp_model(self, target, text):
        flat = read_dcp(target)
        tensors = {
            key.removeprefix("model."): value for key, value in flat.items() if key.startswith("model.") and isinstance(value, torch.Tensor)
        }
        if self.truth.get("adapter"):
            return []
        return self.compare_model(tensors, {}, text, False, True)

    def compare_states(self, target, text):
        truth, problems, flat = self.truth, [], read_dcp(target)
        if KEPT in text:
            return []
        if truth.get("adapter") or truth["format"] == "bitsandbytes":
            return []
        twins = {**truth["aliases"], **{first: second for second, first in truth["aliases"].items()}}
        numbers = {name: i for i, name in enumerate(truth["order"])}
        for name, states in truth["states"].items():
            for state, value in states.items():
                if state == "step" or not isinstance(value, torch.Tensor):
                    continue
                names = [bare(name), bare(twins.get(name, name))]
                names += [f"state.{numbers[name]}", str(numbers[name])] if name in numbers else []
                keys = [f"optim.state.{one}.{inner}{state}" for one in names for inner in ("", QUANTIZED + ".", QUANTIZED + "--")]
                found = next((flat[key] for key in keys if key in flat), None)
                if found is None:
                    if not says(text, name) and not says_state(text, state) and not says(text, f"state.{numbers.get(name)}"):
                        problems.append(f"state {state} of {name} is lost without a word")
                elif not isinstance(found, torch.Tensor):
                    problems.append(f"state {state} of {name} is {found!r}"[:160])
                elif not same(value, found):
                    problems.append(f"state {state} of {name} {what_differs(value, found)}")
        return problems

    # ---- resume

    def judge_resume(self):
        """A step of the real optimizer from the states of a converted file beside a step from those of the truth."""
        commands = [("convert", self.input, self.scratch / "resume.pt", "--to", "torch")]
        if self.truth["format"] == "torch":
            commands = [
                ("convert", self.input, self.scratch / "resume", "--to", "native"),
                ("convert", self.scratch / "resume", *commands[0][2:]),
            ]
        self.judge("convert to torch, one more step", commands, lambda text: self.compare_step(self.scratch / "resume.pt", text))

    def compare_step(self, path, text):
        truth = self.truth
        saved = torch.load(path, weights_only=False)
        states = next((value for value in optimizers_of(saved)), None)
        if states is None:
            return [] if says(text, "optimizer") else ["the optimizer is lost without a word"]
        if any(state in text for state in ("left out", "numbers")) and any(
            says_state(text, state) for states_ in truth["states"].values() for state in states_
        ):
            return []
        results = []
        wanted = {
            "state": {truth["order"].index(name): models.copied(state) for name, state in truth["states"].items() if name in truth["order"]}
        }
        if truth["format"] == "deepspeed":
            for number, state in wanted["state"].items():
                state["step"] = torch.tensor(float(truth["step"]))
        first = iter(range(len(truth["order"])))
        wanted["param_groups"] = [{**models.copied(group), "params": [next(first) for _ in group["params"]]} for group in truth["groups"]]
        for source in (wanted, states):
            start = {**truth["weights"], **truth["masters"]}
            parameters = {name: torch.nn.Parameter(start[name].detach().clone()) for name in truth["order"]}
            optimizer = models.OPTIMIZERS[truth["optimizer"]](
                [{"params": [parameters[name] for name in group["params"]]} for group in truth["groups"]]
            )
            optimizer.load_state_dict(source)
            generator = torch.Generator().manual_seed(1)
            for name, parameter in parameters.items():
                gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
                parameter.grad = gradient if name in truth["states"] else None
            optimizer.step()
            results.append(parameters)
        return [f"{name} goes on with other values" for name in truth["order"] if not same(results[0][name], results[1][name])]

    # ---- other world sizes

    def judge_reshards(self):
        form = self.truth["format"]
        compare = self.compare_deepspeed if form == "deepspeed" else self.compare_dcp_folders
        for options in (
            (("-w", "3"), ("-w", "1"), ("-w", "2", "-s", "1"), ("-w", "2", "-s", "3"))
            if form == "deepspeed"
            else (("-w", "3"), ("-w", "1"))
        ):
            target = self.scratch / "resharded"
            commands = [("reshard", self.input, target, *options)]
            self.judge(f"reshard {' '.join(options)}", commands, lambda text: compare(target, text))
            self.judge(f"reshard {' '.join(options)}, diff", [*commands, ("diff", self.input, target)], lambda text: [])


def deepspeed_merges(folder):
    """What DeepSpeed's own script makes of a run, or None."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        try:
            return {name: value.contiguous() for name, value in dict(get_fp32_state_dict_from_zero_checkpoint(str(folder))).items()}
        except (ValueError, KeyError, FileNotFoundError, AssertionError, RuntimeError):
            return None


def optimizers_of(value, depth=0):
    """The state dicts of optimizers in an object of torch.load."""
    if isinstance(value, dict) and "param_groups" in value and "state" in value:
        yield value
    elif isinstance(value, (dict, list)) and depth < 3:
        for child in value.values() if isinstance(value, dict) else value:
            yield from optimizers_of(child, depth + 1)


def bare(name):
    return WRAPPERS.sub("", name)


def resolve(names, aliases):
    return [aliases.get(name, name) for name in names]


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[-1] if lines else "no message")[:300]
