#!/usr/bin/env python3
"""Every key that the installed DeepSpeed knows is in UniShard's table, with DeepSpeed's default.

config_keys.py BUILD. Exit status: 0 when no key is missing and no default differs.
"""
import inspect
import json
import subprocess
import sys

from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.ops.lion import DeepSpeedCPULion
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.muon.original_muon import Muon
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig

MODELS = {
    "zero_optimization": DeepSpeedZeroConfig,
    "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
    "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
    "fp16": DeepSpeedFP16Config,
    "bf16": DeepSpeedBF16Config,
}
RECORDED = ["activation_checkpointing", "aio", "checkpoint", "data_types", "optimizer"]
SCHEDULES = [lr_schedules.OneCycle, lr_schedules.LRRangeTest, lr_schedules.WarmupLR, lr_schedules.WarmupDecayLR,
             lr_schedules.WarmupCosineLR]
OPTIMIZERS = [FusedAdam, DeepSpeedCPUAdam, DeepSpeedCPULion, DeepSpeedCPUAdagrad]
NOT_KEYS = {"self", "optimizer", "params", "model_params", "set_grad_none", "adamw_mode"}

# Ours differ on purpose: path -> why.
DIFFERENT = {
    "zero_optimization.overlap_comm": "DeepSpeed's depends on the stage",
    "zero_optimization.stage3_param_persistence_threshold": "units are larger than parameters",
    "bf16.check_grad_overflow": "non_finite decides",
}


class Recorder(dict):
    """A section that writes down which keys are asked for."""
    seen = set()
    path = ""

    def note(self, key):
        Recorder.seen.add(f"{self.path}.{key}" if self.path else key)

    def get(self, key, default=None):
        self.note(key)
        return dict.get(self, key, default)

    def __getitem__(self, key):
        self.note(key)
        return dict.__getitem__(self, key)

    def __contains__(self, key):
        self.note(key)
        return dict.__contains__(self, key)

    def keys(self):
        return Keys(self)

    def __copy__(self):
        return self


class Keys:
    def __init__(self, section):
        self.section = section

    def __contains__(self, key):
        return key in self.section

    def __iter__(self):
        return dict.__iter__(self.section)


def asked_for():
    top = Recorder(train_batch_size=1)
    for name in RECORDED:
        top[name] = Recorder()
        top[name].path = name
    config = DeepSpeedConfig(top)
    return Recorder.seen, config


def of_models():
    found = {}
    for section, model in MODELS.items():
        for name, field in model.model_fields.items():
            if (field.json_schema_extra or {}).get("deprecated"):
                found[f"{section}.{name}"] = inspect.Parameter.empty
            else:
                found[f"{section}.{field.alias or name}"] = field.get_default(call_default_factory=True)
    return found


def of_signatures():
    found = {}
    for section, classes in (("scheduler.params", SCHEDULES), ("optimizer.params", OPTIMIZERS)):
        for each in classes:
            for name, parameter in inspect.signature(each.__init__).parameters.items():
                if name not in NOT_KEYS:
                    found.setdefault(f"{section}.{name}", parameter.default)
    for name in (*DeepSpeedEngine._MUON_HALF_KEYS, *DeepSpeedEngine._ADAM_HALF_KEYS, "muon_lr", "adam_lr", "per_head_muon"):
        found.setdefault(f"optimizer.params.{name}", inspect.signature(Muon.__init__).parameters["ns_method"].default if name == "ns_method"
                         else inspect.Parameter.empty)
    return found


def plain(value):
    value = {"torch.float32": "fp32"}.get(str(value), getattr(value, "value", value))
    return list(value) if isinstance(value, tuple) else value


def main(build):
    program = f"{build}/bin/unishard"
    schema = json.loads(subprocess.check_output([program, "config", "--schema"]))
    ours = {}

    def walk(node, section):
        for option in node.get("anyOf", []):
            walk(option, section)
        for name, key in node.get("properties", {}).items():
            path = f"{section}.{name}" if section else name
            ours[path] = key
            walk(key, path)

    walk(schema, "")
    asked, config = asked_for()
    defaults = {**of_models(), **of_signatures()}
    known = asked | set(defaults)
    missing = sorted(known - set(ours))
    for path in missing:
        print(f"missing: {path}")
    for path in asked:
        if "." not in path and hasattr(config, path):
            defaults[path] = getattr(config, path)
    differ = 0
    compared = 0
    for path, theirs in sorted(defaults.items()):
        theirs = plain(theirs)
        if path not in ours or "default" not in ours[path] or theirs in (inspect.Parameter.empty, None):
            continue
        compared += 1
        if ours[path]["default"] != theirs and path not in DIFFERENT:
            differ += 1
            print(f"default of {path}: DeepSpeed has {theirs!r}, the table {ours[path]['default']!r}")
    print(f"{len(known)} keys of DeepSpeed, {len(missing)} missing; {compared} defaults compared, {differ} differ, "
          f"{len(DIFFERENT)} on purpose")
    return 1 if missing or differ or compared < 60 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
