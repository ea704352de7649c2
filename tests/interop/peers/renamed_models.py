#!/usr/bin/env python3
"""Models of transformers whose files have other names than their modules.

    renamed_models.py BUILD [--all]

For each type of model a small one is saved as the Trainer saves it, with an optimizer of a parameter's shape. Where the file has names that the module
lacks, `unishard verify` either names the module's parameters (experts that it stacks) or remarks that the Trainer loads no such tensor. Where the names
are the module's, it says nothing of the kind, and never that a tensor is missing. --all takes every class of the library (10 minutes), otherwise some.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.auto import modeling_auto

SOME = """ViTForImageClassification DeiTModel Dinov2Model BeitForImageClassification SwinModel SegformerModel VideoMAEModel GPTNeoXForCausalLM
          DINOv3ViTModel LlamaForCausalLM BertModel T5Model GPT2LMHeadModel Qwen3MoeForCausalLM MixtralForCausalLM
          ExaoneMoeForCausalLM LongcatFlashForCausalLM JambaForCausalLM MiMoV2FlashForCausalLM HunYuanMoEV1ForCausalLM
          Lfm2MoeForCausalLM HYV3ForCausalLM LagunaForCausalLM""".split()
SMALL = {**dict.fromkeys(["hidden_size", "d_model", "n_embd", "moe_intermediate_size"], 32),
         **dict.fromkeys(["num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers", "num_key_value_heads"], 2),
         **dict.fromkeys(["num_attention_heads", "n_head", "num_heads", "encoder_attention_heads", "decoder_attention_heads", "num_experts",
                          "num_local_experts", "n_routed_experts"], 4),
         **dict.fromkeys(["intermediate_size", "n_inner", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "max_position_embeddings"], 64),
         **dict.fromkeys(["head_dim", "d_kv", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"], 8),
         **dict.fromkeys(["n_shared_experts", "first_k_dense_replace", "n_group", "topk_group"], 1), "num_experts_per_tok": 2, "vocab_size": 320}
REMARK = "names of the hub"


def shrink(config, depth=0):
    for key, value in list(vars(config).items()):
        if key in SMALL and isinstance(value, int) and not isinstance(value, bool):
            setattr(config, key, SMALL[key])
        elif hasattr(value, "to_dict") and depth < 3:
            shrink(value, depth + 1)
    if isinstance(getattr(config, "layer_types", None), list):
        config.layer_types = config.layer_types[: getattr(config, "num_hidden_layers", 2)]
    if (getattr(config, "pad_token_id", None) or 0) >= 320:
        config.pad_token_id = 0


def small_model(name, folder):
    """Saves a model of the class and returns it; None where these sizes do not fit together, or are too large still."""
    try:
        model_class = getattr(transformers, name)
        config = model_class.config_class()
        shrink(config)
        with torch.device("meta"):
            model = model_class(config)
        if sum(p.numel() for p in model.parameters()) > 20_000_000:
            return None
        model = model_class(config)
        model.save_pretrained(folder)
        return model
    except Exception:
        return None


def all_classes():
    found = set()
    for table in vars(modeling_auto):
        if table.startswith("MODEL") and table.endswith("_NAMES"):
            for value in getattr(modeling_auto, table).values():
                found.update([value] if isinstance(value, str) else value)
    return sorted(found)


def add_optimizer(model, folder):
    """Makes the model's folder one of the Trainer."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    states = {i: {"step": torch.tensor(1.0), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)} for i, p in enumerate(parameters)}
    group = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False, "params": list(range(len(parameters)))}
    torch.save({"state": states, "param_groups": [group]}, folder / "optimizer.pt")
    torch.save({"last_epoch": 1, "_step_count": 2}, folder / "scheduler.pt")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 1}))


def wrong(program, model, folder):
    """Says what is wrong; None where all is as it should be."""
    add_optimizer(model, folder)
    lines = subprocess.run([program, "verify", folder], capture_output=True, text=True)
    if lines.returncode:
        return f"verify: {(lines.stderr or lines.stdout).strip()[-200:]}"
    listed = subprocess.run([program, "inspect", folder, "--json"], capture_output=True, text=True, check=True)
    names = {tensor["name"] for tensor in json.loads(listed.stdout)["tensors"] if not tensor["name"].startswith("state.")}
    states = dict(model.state_dict())
    strange = sorted(name for name in names if name not in states)
    # Names of tied or unused tensors are not the library's renames.
    renamed = sorted(set(revert_weight_conversion(model, states)) - set(states))
    is_said = REMARK in lines.stdout + lines.stderr
    if set(strange) & set(renamed) and not is_said:
        return f"nothing says that the module has no {strange[0]}"
    if is_said and not renamed:
        return "names are said to be the hub's, and they are the module's"
    if "every model of the type" in lines.stdout + lines.stderr:
        return "a tensor is said to be missing"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    failed, tried = 0, 0
    for name in all_classes() if args.all else SOME:
        with tempfile.TemporaryDirectory() as work:
            folder = pathlib.Path(work) / "checkpoint-1"
            model = small_model(name, folder)
            if model is None:
                continue
            tried += 1
            problem = wrong(args.build / "bin/unishard", model, folder)
        if problem:
            failed += 1
            print(f"{name} ({model.config.model_type}): {problem}")
    print(f"{tried} models, {failed} wrong")
    sys.exit(1 if failed or tried == 0 else 0)


if __name__ == "__main__":
    main()
