#!/usr/bin/env python3
"""Folders of the real Trainer, accelerate and PEFT go through UniShard, and their programs go on from the results.

  trainer_resumes.py BUILD [PART...]    parts: orders trainer groups deepspeed experts accelerate adapters kinds dtypes objects (default: all)

  orders      the optimizer of every model that UniShard knows gets the names of named_parameters()
  trainer     a plain Trainer resumes from its checkpoint after each conversion with the bits of the undisturbed run
  groups      a plain Trainer refuses an optimizer of one group, which UniShard says, and a subclass that makes one resumes
  deepspeed   so does a Trainer with DeepSpeed, also on another number of ranks
  experts     mixtures of experts, which transformers stacks in memory and not in files: the Trainer resumes (from its own folders it does not, 5.23),
              and zero_to_fp32 writes the files' names
  accelerate  Accelerator.load_state
  adapters    PEFT loads the adapter of a run under the Trainer, DeepSpeed or DCP with equal values
  kinds       so it does with adapters of every kind that it has
  dtypes      from_pretrained without a dtype gives the values of the checkpoint
  objects     odd Python values in DeepSpeed's client state stay what they are
Exit status: 0 all equal, 1 something differs, 77 something is not installed.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import warnings

import torch_keeps
import truth

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.filterwarnings("ignore")
PARTS = ("orders", "trainer", "groups", "deepspeed", "experts", "accelerate", "adapters", "kinds", "dtypes", "objects")
STEPS, SAVED = 6, 3
TINY = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24,
        "max_position_embeddings": 32, "head_dim": 8, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "d_model": 16, "d_kv": 8, "d_ff": 24,
        "num_layers": 2, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "ffn_dim": 24, "word_embed_proj_dim": 16, "dim": 16, "hidden_dim": 24, "n_heads": 2,
        "n_layers": 2, "n_inner": 24, "rotary_dim": 4, "embedding_size": 16, "image_size": 8, "patch_size": 4, "state_size": 4, "time_step_rank": 2,
        "max_source_positions": 16, "max_target_positions": 16, "num_mel_bins": 4, "attention_types": [[["global", "local"], 1]], "expansion_ratio": 2,
        "max_seq_len": 32, "partial_rotary_factor": 0.5, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
        "num_hidden_groups": 1, "global_attn_every_n_layers": 2,
        "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
        "moe_num_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 4,
        "kv_lora_rank": 4, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4, "n_shared_experts": 1, "linear_key_head_dim": 4,
        "linear_value_head_dim": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 2}

MAMBA_HEADS = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 4}
LINEAR_FIRST = {"layer_types": ["linear_attention", "full_attention"]}
# What one kind of model needs in order to be small and to have experts.
OWN = {"mamba2": {"head_dim": 16},
       "granitemoeshared": {"shared_intermediate_size": 8},
       "granitemoehybrid": {"shared_intermediate_size": 8, "layer_types": ["mamba", "attention"], **MAMBA_HEADS},
       "jamba": {"expert_layer_period": 2, "expert_layer_offset": 1, "attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False,
                 "mamba_d_state": 4, "mamba_dt_rank": 4},
       "ernie4_5_moe": {"moe_k": 2, "moe_layer_start_index": 1, "moe_num_shared_experts": 1},
       "minimax": LINEAR_FIRST,
       "nemotron_h": {"layers_block_type": ["mamba", "moe", "attention", "mamba", "moe"], "num_hidden_layers": 5,
                      "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 4, "n_groups": 1, "moe_shared_expert_intermediate_size": 8},
       "qwen3_5_moe_text": {**LINEAR_FIRST, "linear_num_key_heads": 2, "linear_num_value_heads": 4}}


# ---- one job of a Trainer ------------------------------------------------------------------------------------------

def make_model(kind, adapter=False):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.manual_seed(0)
    layers = {"num_hidden_layers": 12, "n_layer": 12} if kind == "gpt2" else {}  # h.10 comes after h.9, and before it by name
    config = AutoConfig.for_model(kind, **{**TINY, **layers, "resid_pdrop": 0.1, **OWN.get(kind, {})})
    model = AutoModelForCausalLM.from_config(config)
    if not adapter:
        return model
    from peft import LoraConfig, get_peft_model
    return get_peft_model(model, LoraConfig(r=4, target_modules=adapter, lora_dropout=0.1, modules_to_save=["lm_head"], task_type="CAUSAL_LM"))


def samples(count=64):
    import torch
    rows = torch.randint(0, 64, (count, 16), generator=torch.Generator().manual_seed(7))

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return count

        def __getitem__(self, i):
            return {"input_ids": rows[i], "labels": rows[i]}
    return Samples()


def run_trainer(job):
    """Trains to STEPS; returns the losses."""
    from transformers import Trainer, TrainingArguments
    arguments = {"output_dir": job["out"], "max_steps": STEPS, "save_steps": SAVED, "per_device_train_batch_size": 2, "logging_steps": 1,
                 "learning_rate": 1e-2, "warmup_steps": 2, "weight_decay": 0.1, "report_to": [], "use_cpu": True, "seed": 1, "disable_tqdm": True}
    if job.get("stage") is not None:
        arguments["deepspeed"] = {"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "gradient_accumulation_steps": "auto",
                                  "zero_optimization": {"stage": job["stage"]}, "zero_allow_untested_optimizer": True,
                                  "bf16": {"enabled": job.get("bf16", False)}, "steps_per_print": 1 << 30}
        arguments["bf16"] = job.get("bf16", False)
    class OneGroup(Trainer):
        def create_optimizer(self, model=None):
            import torch
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.args.learning_rate)
            return self.optimizer

    program = OneGroup if job.get("one_group") else Trainer
    trainer = program(model=make_model(job["kind"], job.get("adapter")), args=TrainingArguments(**arguments, **job.get("more", {})),
                      train_dataset=samples())
    trainer.train(resume_from_checkpoint=job.get("resume"))
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def work(job_file):
    import torch
    import transformers
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    job = json.loads(pathlib.Path(job_file).read_text())
    if job["do"] == "trainer":
        losses = run_trainer(job)
    elif job["do"] == "client_state":
        losses = client_state(job)
    if os.environ["RANK"] == "0":
        print("RESULT " + json.dumps(losses), flush=True)


def launch(job, ranks=1):
    """Runs a job in processes of its own; returns its result."""
    import glob
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job, file)
        file.flush()
        path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # DeepSpeed builds with the ninja there
        outputs, port = truth.launch(work, file.name, ranks, {"LOCAL_SIZE": str(ranks), "PATH": path})
    for left in glob.glob(f"/dev/shm/deepspeed_allreduce_buffer_*_{port}_*"):
        os.remove(left)
    for rank, (status, output) in enumerate(outputs):
        if status != 0:
            raise SystemExit(f"rank {rank} of {job}:\n{output[-3000:]}")
    return json.loads(next(line[7:] for line in outputs[0][1].splitlines() if line.startswith("RESULT ")))


# ---- what the parts share ------------------------------------------------------------------------------------------

class Table:
    def __init__(self):
        self.failed = 0

    def row(self, name, found):
        self.failed += bool(found)
        print(f"{name:62} {'equal' if not found else 'DIFFERS: ' + '; '.join(map(str, found[:4]))}", flush=True)


def convert(unishard, *steps):
    """`convert` from each path to the next; a step is (path, format)."""
    for (source, _), (target, form) in zip(steps, steps[1:]):
        truth.run(unishard, "convert", source, target, "--to", form, "--assume-model-order")
    return steps[-1][0]


def model_of(folder):
    from safetensors.torch import load_file
    return load_file(next(folder / name for name in ("model.safetensors", "adapter_model.safetensors") if (folder / name).exists()))


def differing_tensors(expected, found):
    import torch
    if set(expected) != set(found):
        return [f"other names: {sorted(set(expected) ^ set(found))[:4]}"]
    return [name for name in expected if expected[name].dtype != found[name].dtype or not torch.equal(expected[name], found[name])]


def compare_runs(expected, losses, run, reference, unishard=None):
    """A resumed run beside the undisturbed one: losses after the resume, weights and optimizer at the end."""
    import torch
    found = [f"losses {losses[-3:]} instead of {expected[-3:]}"] if losses[-(STEPS - SAVED):] != expected[-(STEPS - SAVED):] else []
    ends = [folder / f"checkpoint-{STEPS}" for folder in (reference, run)]
    if not (ends[0] / "latest").exists():
        found += differing_tensors(*map(model_of, ends))
    if (ends[0] / "optimizer.pt").exists():
        states = [torch.load(end / "optimizer.pt", weights_only=True)["state"] for end in ends]
        found += torch_keeps.differences(*states, "optimizer")
    if unishard:
        found += json.loads(subprocess.run([unishard, "diff", *ends, "--json"], capture_output=True, text=True).stdout)["differences"]
    return found


# ---- the parts -----------------------------------------------------------------------------------------------------

def known_models():
    """The model types in UniShard's table."""
    table = pathlib.Path(__file__).resolve().parents[3] / "converters/src/formats/trainer/known_models.cpp"
    text = table.read_text()
    text = text[text.index("kModels = {{"):text.index("}};")]
    return [name for types in re.findall(r'^    \{"([^"(]*)",', text, re.M) for name in types.split()]


def model_class(kind):
    import transformers
    from transformers.models.auto import modeling_auto as auto
    for names in (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
                  auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES):
        if kind in names:
            return getattr(transformers, names[kind] if isinstance(names[kind], str) else names[kind][0])
    raise KeyError(kind)


def orders(unishard, scratch, table):
    import torch
    import transformers
    from transformers import AutoConfig, Trainer, TrainingArguments
    transformers.logging.set_verbosity_error()
    for kind in known_models():
        folder = scratch / kind
        tiny = {k: v for k, v in TINY.items() if k != "head_dim" or kind not in ("gptj", "codegen", "falcon", "mamba2")}
        config = AutoConfig.for_model(kind, **{**tiny, **OWN.get(kind, {})})
        torch.manual_seed(0)
        model = model_class(kind)(config)
        trainer = Trainer(model=model, args=TrainingArguments(output_dir=str(folder), use_cpu=True, report_to=[], weight_decay=0.1))
        optimizer = trainer.create_optimizer()
        with torch.no_grad():
            for i, parameter in enumerate(model.parameters()):
                parameter.fill_(i)
                parameter.grad = torch.ones_like(parameter)
        model.save_pretrained(folder)  # some modules have other names in files
        names = {float(tensor.flatten()[0]): name for name, tensor in model_of(folder).items()}
        if "experts" in str(model):  # the files have others
            names = {float(i): name for i, (name, _) in enumerate(model.named_parameters())}
        expected = [[names[float(p.flatten()[0])] for p in group["params"]] for group in optimizer.param_groups]
        optimizer.step()
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")
        found = json.loads(truth.run(unishard, "inspect", folder, "--json"))
        table.row(f"orders {kind}", [] if [group["params"] for group in found["groups"]] == expected else ["other names for its numbers"])
        hub = scratch / f"{kind}-hub"
        truth.run(unishard, "zero_to_fp32", folder, hub)
        table.row(f"orders {kind}: zero_to_fp32", differing_tensors(model_of(folder), model_of(hub)))
        shutil.rmtree(folder)
        shutil.rmtree(hub)


def trainer(unishard, scratch, table):
    for kind, more in (("gpt2", {}), ("llama", {}), ("llama", {"optim": "sgd"}), ("gpt2", {"optim": "sgd"}),
                       ("gpt2", {"optim": "adafactor"})):
        label = f"{kind} {more.get('optim', 'adamw')}"
        job = {"do": "trainer", "kind": kind, "more": more}
        reference = scratch / label.replace(" ", "-")
        expected = launch({**job, "out": str(reference)})
        saved = reference / f"checkpoint-{SAVED}"
        ways = {"itself": [], "native": ["native"], "dcp": ["dcp"], "accelerate": ["accelerate"], "deepspeed": ["deepspeed"],
                "deepspeed native": ["deepspeed", "native"], "torch": ["torch"]}
        if more:
            ways = {"itself": [], "native": ["native"], **({"deepspeed": ["deepspeed"]} if more["optim"] == "sgd" else {})}
        for name, through in ways.items():
            work_folder = scratch / f"{reference.name}-{name.replace(' ', '-')}"
            steps = [(saved, None)] + [(work_folder / (f"{i}.pt" if form == "torch" else str(i)), form) for i, form in enumerate(through)]
            resumed = convert(unishard, *steps, (work_folder / "run" / f"checkpoint-{SAVED}", "trainer"))
            losses = launch({**job, "out": str(work_folder / "run"), "resume": str(resumed)})
            found = compare_runs(expected, losses, work_folder / "run", reference)
            missing = {file.name for file in saved.iterdir()} - {file.name for file in resumed.iterdir()}
            if "torch" in through:  # one file holds no files beside it: generators start anew, and the Trainer logs as by default
                ended = work_folder / "run" / f"checkpoint-{STEPS}" / "trainer_state.json"
                found = [] if ended.exists() and json.loads(ended.read_text())["global_step"] == STEPS else ["it did not reach the end"]
                missing &= {"trainer_state.json", "scheduler.pt"}
            table.row(f"trainer {label} through {name}", found + ([f"lacks {sorted(missing)}"] if missing else []))
    # The output folder means its newest checkpoint.
    listed = json.loads(truth.run(unishard, "inspect", reference, "--tags", "--json"))
    found = [] if [tag["tag"] for tag in listed["tags"]] == [f"checkpoint-{SAVED}", f"checkpoint-{STEPS}"] else [listed]
    for tag, step in ((None, STEPS), (f"checkpoint-{SAVED}", SAVED)):
        shown = json.loads(truth.run(unishard, "inspect", reference, "--json", *(["--tag", tag] if tag else [])))
        found += [] if shown["step"] == step else [f"{tag} is step {shown['step']}"]
    table.row("trainer: the output folder", found)


def groups(unishard, scratch, table):
    job = {"do": "trainer", "kind": "llama", "one_group": True}
    reference, run = scratch / "reference", scratch / "run"
    expected = launch({**job, "out": str(reference)})
    made = run / f"checkpoint-{SAVED}"
    convert(unishard, (reference / f"checkpoint-{SAVED}", None), (scratch / "deepspeed", "deepspeed"))
    said = subprocess.run([unishard, "convert", scratch / "deepspeed", made, "--to", "trainer"], capture_output=True, text=True, check=True).stderr
    found = [] if "create_optimizer()" in said else ["UniShard does not say what to do"]
    try:
        launch({**job, "one_group": False, "out": str(scratch / "plain"), "resume": str(made)})
        found.append("the plain Trainer loads it")
    except SystemExit as refused:
        found += [] if "parameter groups" in str(refused) else [str(refused)[-300:]]
    table.row("groups: a plain Trainer refuses one group", found)
    table.row("groups: a subclass resumes", compare_runs(expected, launch({**job, "out": str(run), "resume": str(made)}), run, reference))


def deepspeed(unishard, scratch, table):
    for stage, bf16, adapter in ((2, False, None), (3, True, None), (3, True, ["q_proj", "v_proj"])):
        job = {"do": "trainer", "kind": "llama", "stage": stage, "bf16": bf16, "adapter": adapter}
        name = f"stage {stage}{' bf16' if bf16 else ''}{' with an adapter' if adapter else ''}"
        reference = scratch / name
        expected = launch({**job, "out": str(reference)}, 2)
        saved = reference / f"checkpoint-{SAVED}"
        for ranks in (2, 1):
            run = scratch / f"{name} on {ranks}"
            resumed = run / f"checkpoint-{SAVED}"
            truth.run(unishard, "reshard", saved, resumed, "-w", ranks)
            losses = launch({**job, "out": str(run), "resume": str(resumed)}, ranks)
            names = {file.name for file in saved.iterdir()} - {file.name for file in resumed.iterdir()} - {"model.safetensors", "adapter_model.safetensors"}
            found = [f"lacks {sorted(names)}"] if names else []
            if ranks == 2:
                found += compare_runs(expected, losses, run, reference, unishard)
            table.row(f"deepspeed {name}, 2 ranks to {ranks}", found)


def experts(unishard, scratch, table):
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging
    logging.disable_progress_bar()
    for kind in ("qwen3_moe", "mixtral", "jamba", "nemotron_h", "granitemoe"):
        job = {"do": "trainer", "kind": kind}
        reference = scratch / kind
        expected = launch({**job, "out": str(reference)})
        saved = reference / f"checkpoint-{SAVED}"
        for name, through in {"itself": [], "native": ["native"], "dcp": ["dcp"], "deepspeed native": ["deepspeed", "native"]}.items():
            folder = scratch / f"{kind}-{name.replace(' ', '-')}"
            steps = [(saved, None)] + [(folder / str(i), form) for i, form in enumerate(through)]
            resumed = convert(unishard, *steps, (folder / "run" / f"checkpoint-{SAVED}", "trainer"))
            losses = launch({**job, "out": str(folder / "run"), "resume": str(resumed)})
            states = [AutoModelForCausalLM.from_pretrained(place).state_dict() for place in (saved, resumed)]
            table.row(f"experts {kind} through {name}",
                      differing_tensors(*states) + compare_runs(expected, losses, folder / "run", reference))
        trained = scratch / f"{kind}-deepspeed"
        launch({**job, "out": str(trained), "stage": 2}, 2)
        saved, model = trained / f"checkpoint-{SAVED}", scratch / f"{kind}-model"
        truth.run(unishard, "zero_to_fp32", saved, model)
        table.row(f"experts {kind} under DeepSpeed: zero_to_fp32", differing_tensors(model_of(saved), model_of(model)))
        states = [AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (saved, model)]
        truth.run(unishard, "zero_to_fp32", saved, model / "module.safetensors", "--module-names")
        table.row(f"experts {kind} under DeepSpeed: from_pretrained", differing_tensors(*states))
        table.row(f"experts {kind} under DeepSpeed: --module-names", differing_tensors(states[0], load_file(model / "module.safetensors")))


def accelerate(unishard, scratch, table):
    import torch
    from accelerate import Accelerator

    class Counter:
        def __init__(self):
            self.count = 0

        def state_dict(self):
            return {"count": self.count, "values": torch.arange(3)}

        def load_state_dict(self, state):
            self.count = state["count"]

    class Plain(torch.nn.Module):
        """Has no table of its order, and parameters of one shape."""
        def __init__(self, width):
            super().__init__()
            self.last, self.first = torch.nn.Linear(width, 2), torch.nn.Linear(16, width)

        def forward(self, input_ids, labels):
            return self.last(torch.relu(self.first(input_ids.float() / 64))).square().mean()

    def make_models(kind):
        torch.manual_seed(0)
        if kind == "llama":
            return [make_model("llama")]
        models = [Plain(width) for width in ((6, 8) if kind == "two models" else (6, 6) if kind == "two alike" else (6,))]
        return [torch.compile(model, backend="eager") for model in models] if kind == "compiled" else models

    def prepare(kind):
        from accelerate.state import AcceleratorState, GradientState, PartialState
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        accelerator = Accelerator(cpu=True)
        models = make_models(kind)
        optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2 * (i + 1)) for i, model in enumerate(models)]
        schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 2) for optimizer in optimizers]
        loader = torch.utils.data.DataLoader(samples(), batch_size=2, shuffle=True)
        counter = Counter()
        accelerator.register_for_checkpointing(counter)
        prepared = accelerator.prepare(*models, *optimizers, *schedules, loader)
        count = len(models)
        return accelerator, counter, list(zip(*(prepared[i * count:(i + 1) * count] for i in range(3)))), prepared[-1]

    def train(accelerator, counter, triples, loader, count):
        losses = []
        batches = iter(loader)
        for _ in range(count):
            batch = next(batches)
            for model, optimizer, schedule in triples:
                loss = model(**batch)
                loss = getattr(loss, "loss", loss)
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                losses.append(float(loss.detach()))
            counter.count += 1
        return losses

    for kind in ("llama", "plain", "two models", "two alike", "compiled"):
        job = prepare(kind)
        train(*job, SAVED)
        for safe in (True, False):
            label = f"{kind} {'safetensors' if safe else 'pytorch_model.bin'}"
            folder = scratch / label.replace(" ", "-")
            saved = folder / "saved"
            job[0].save_state(str(saved), safe_serialization=safe)
            expected = None
            for name, through in (("nothing", None), ("itself", []), ("native", ["native"]), ("dcp", ["dcp"])):
                steps = [(saved, None)] + [(folder / f"{name}-{i}", form) for i, form in enumerate(through or [])]
                resumed = saved if through is None else convert(unishard, *steps, (folder / name, "accelerate"))
                again = prepare(kind)
                again[0].load_state(str(resumed))
                losses = train(*again, SAVED), again[1].count
                if through is None:
                    expected = losses
                    continue
                found = [] if losses == expected else [f"{losses} instead of {expected}"]
                names = ({re.sub("^pytorch_(model.*)bin$", r"\1safetensors", file.name) for file in path.iterdir()} for path in (saved, resumed))
                missing = set.difference(*names)
                table.row(f"accelerate {label} through {name}", found + ([f"lacks {sorted(missing)}"] if missing else []))


    # SGD has no states, and so no steps.
    from accelerate.state import AcceleratorState
    AcceleratorState._reset_state(True)
    accelerator, model = Accelerator(cpu=True), Plain(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2))
    train(accelerator, Counter(), [(model, optimizer, schedule)], torch.utils.data.DataLoader(samples(), batch_size=2), SAVED)
    accelerator.save_state(str(scratch / "sgd"))
    convert(unishard, (scratch / "sgd", None), (scratch / "sgd-trainer", "trainer"))
    steps = json.loads((scratch / "sgd-trainer/trainer_state.json").read_text())["global_step"]
    table.row("accelerate: the steps of SGD are those of its schedule", [] if steps == SAVED else [steps])


def adapters(unishard, scratch, table):
    import torch
    import torch.distributed.checkpoint as dcp
    from peft import PeftModel, get_peft_model_state_dict
    targets = ["q_proj", "v_proj"]

    def check(name, folder, expected):
        loaded = PeftModel.from_pretrained(make_model("llama"), folder)
        found = differing_tensors({k: v.float() for k, v in expected.items()}, {k: v.float() for k, v in get_peft_model_state_dict(loaded).items()})
        table.row(f"adapters {name}", found)

    job = {"do": "trainer", "kind": "llama", "adapter": targets}
    reference = scratch / "plain"
    losses = launch({**job, "out": str(reference)})
    saved = reference / f"checkpoint-{SAVED}"
    truth.run(unishard, "zero_to_fp32", saved, scratch / "plain-model")
    check("of a Trainer", scratch / "plain-model", model_of(saved))
    # The Trainer's group of parameters without weight decay is empty, and DeepSpeed has no such groups.
    for name, through in (("itself", []), ("native", ["native"]), ("deepspeed", ["deepspeed"]), ("universal", ["deepspeed-universal"])):
        run = scratch / f"plain-{name}"
        steps = [(saved, None)] + [(scratch / f"plain-{form}-0", form) for form in through]
        resumed = convert(unishard, *steps, (run / f"checkpoint-{SAVED}", "trainer"))
        again = launch({**job, "out": str(run), "resume": str(resumed)})
        table.row(f"adapters: the Trainer resumes through {name}", compare_runs(losses, again, run, reference))
    for stage in (2, 3):
        run = scratch / f"stage{stage}"
        launch({**job, "out": str(run), "stage": stage}, 2)
        truth.run(unishard, "zero_to_fp32", run / f"checkpoint-{SAVED}", scratch / f"model{stage}")
        check(f"of a Trainer with DeepSpeed, stage {stage}", scratch / f"model{stage}", model_of(run / f"checkpoint-{SAVED}"))
    model = make_model("llama", targets)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    from torch.distributed.checkpoint.state_dict import get_state_dict
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": states}, checkpoint_id=scratch / "dcp", no_dist=True)
    model.peft_config["default"].save_pretrained(scratch / "dcp")
    truth.run(unishard, "zero_to_fp32", scratch / "dcp", scratch / "dcp-model")
    check("of a DCP folder with its base model", scratch / "dcp-model", get_peft_model_state_dict(model))


def peft_kinds():
    """One configuration for each kind of adapter, and for what LoRA may have beside its matrices."""
    import peft
    two, one, causal = ["q_proj", "v_proj"], ["q_proj"], {"task_type": "CAUSAL_LM"}
    return {
        "prompt": peft.PromptTuningConfig(num_virtual_tokens=4, **causal),
        "prefix": peft.PrefixTuningConfig(num_virtual_tokens=4, **causal),
        "p-tuning": peft.PromptEncoderConfig(num_virtual_tokens=4, encoder_hidden_size=8, **causal),
        "cpt": peft.CPTConfig(cpt_token_ids=[1, 2], cpt_mask=[1, 1], cpt_tokens_type_mask=[1, 1], **causal),
        "adaption prompt": peft.AdaptionPromptConfig(adapter_len=2, adapter_layers=1, **causal),
        "ia3": peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], **causal),
        "vera": peft.VeraConfig(r=2, target_modules=one, **causal),
        "randlora": peft.RandLoraConfig(r=2, target_modules=one, **causal),
        "vblora": peft.VBLoRAConfig(r=2, num_vectors=8, vector_length=4, topk=2, target_modules=one, **causal),
        "loha": peft.LoHaConfig(r=2, target_modules=two, **causal),
        "lokr": peft.LoKrConfig(r=2, target_modules=two, **causal),
        "adalora": peft.AdaLoraConfig(init_r=2, target_r=1, total_step=10, target_modules=two, **causal),
        "oft": peft.OFTConfig(r=0, oft_block_size=4, target_modules=two, **causal),
        "boft": peft.BOFTConfig(boft_block_size=4, target_modules=two, **causal),
        "hra": peft.HRAConfig(r=2, target_modules=two, **causal),
        "layer norms": peft.LNTuningConfig(target_modules=["input_layernorm"], **causal),
        "fourier": peft.FourierFTConfig(n_frequency=10, target_modules=two, **causal),
        "c3a": peft.C3AConfig(block_size=8, target_modules=two, **causal),
        "miss": peft.MissConfig(r=2, target_modules=two, **causal),
        "shira": peft.ShiraConfig(r=2, target_modules=two, **causal),
        "road": peft.RoadConfig(variant="road_1", group_size=4, target_modules=two, **causal),
        "tokens": peft.TrainableTokensConfig(token_indices=[1, 2, 3], target_modules=["embed_tokens"], **causal),
        "lora with tokens": peft.LoraConfig(r=2, target_modules=two, trainable_token_indices=[1, 2], **causal),
        "lora of embeddings": peft.LoraConfig(r=2, target_modules=["embed_tokens", "q_proj"], **causal),
        "lora with biases": peft.LoraConfig(r=2, target_modules=two, lora_bias=True, **causal),
        "lora of parameters": peft.LoraConfig(r=2, target_modules=two, target_parameters=["mlp.up_proj.weight"], **causal),
        "dora": peft.LoraConfig(r=2, target_modules=two, use_dora=True, **causal),
    }


def kinds(unishard, scratch, table):
    import torch
    from peft import PeftModel, get_peft_model
    for kind, config in peft_kinds().items():
        saved = scratch / kind / f"checkpoint-{SAVED}"
        model = get_peft_model(make_model("llama"), config)
        parameters = [p for p in model.parameters() if p.requires_grad]
        for parameter in parameters:
            parameter.data.normal_()
            parameter.grad = torch.ones_like(parameter)
        optimizer = torch.optim.AdamW(parameters, lr=1e-2)
        optimizer.step()
        model.save_pretrained(saved)
        torch.save(optimizer.state_dict(), saved / "optimizer.pt")
        (saved / "trainer_state.json").write_text(json.dumps({"global_step": SAVED}))
        native = scratch / kind / "native"
        again = convert(unishard, (saved, None), (scratch / kind / "again" / saved.name, "trainer"))
        back = convert(unishard, (saved, None), (native, "native"), (scratch / kind / "back" / saved.name, "trainer"))
        truth.run(unishard, "zero_to_fp32", saved, scratch / kind / "model")
        truth.run(unishard, "zero_to_fp32", native, scratch / kind / "native-model")
        found = []
        for made in (again, back, scratch / kind / "model", scratch / kind / "native-model"):
            found += [f"{made.parent.name}: {name}" for name in differing_tensors(model_of(saved), model_of(made))]
            PeftModel.from_pretrained(make_model("llama"), made)
        for made in (again, back):
            states = [torch.load(folder / "optimizer.pt", weights_only=True)["state"] for folder in (saved, made)]
            found += torch_keeps.differences(*states, made.parent.name)
        table.row(f"kinds {kind}", found)


def dtypes(unishard, scratch, table):
    import torch
    from transformers import AutoModelForCausalLM
    model = make_model("llama").to(torch.bfloat16)
    for key in ("dtype", "torch_dtype"):
        folder = scratch / key
        model.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        config.pop("dtype", None)
        (folder / "config.json").write_text(json.dumps({**config, key: "bfloat16"}))
        for dtype in (None, "fp16", "bf16"):
            made = scratch / f"{key}-{dtype}"
            truth.run(unishard, "zero_to_fp32", folder, made, *(["--dtype", dtype] if dtype else []))
            loaded = AutoModelForCausalLM.from_pretrained(made).state_dict()
            table.row(f"dtypes {key}, --dtype {dtype}", differing_tensors(model_of(made), {k: loaded[k] for k in model_of(made)}))


def client_state(job):
    """Saves odd values in DeepSpeed's client state, or loads and compares them."""
    import deepspeed
    import torch
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 3)
    config = {"train_batch_size": 2, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}, "steps_per_print": 1 << 30}
    engine = deepspeed.initialize(model=model, config=config)[0]
    values = {"odd": torch_keeps.odd_values(), "nested": {"list": [torch.arange(4), (torch.ones(2, dtype=torch.float16), {"deep": torch.tensor(3)})]},
              "plain": 7}
    if not job.get("load"):
        loss = engine(torch.ones(2, 4)).sum()
        engine.backward(loss)
        engine.step()
        engine.save_checkpoint(job["folder"], client_state=values)
        return []
    _, client = engine.load_checkpoint(job["folder"])
    found = [f"{key} is gone" for key in values if key not in client]
    return found + torch_keeps.differences(values, {key: client.get(key) for key in values})


def objects(unishard, scratch, table):
    launch({"do": "client_state", "folder": str(scratch / "saved")})
    truth.run(unishard, "reshard", scratch / "saved", scratch / "resharded", "-w", 1)
    table.row("objects deepspeed to deepspeed", launch({"do": "client_state", "folder": str(scratch / "resharded"), "load": True}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {PARTS}; default: all")
    arguments = parser.parse_args()
    truth.require("transformers", "accelerate", "peft", "deepspeed")
    table = Table()
    for part in arguments.parts or PARTS:
        with tempfile.TemporaryDirectory() as scratch:
            globals()[part]((arguments.build / "bin/unishard").resolve(), pathlib.Path(scratch), table)
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
