#!/usr/bin/env python3
"""Real trainers (Hugging Face Trainer, accelerate, Lightning) save and load with unishard.integrations.

A run that is killed goes on with the losses of its undisturbed run; on another number of ranks it goes on as the library itself does
from its own checkpoint of the same moment.

  trainer_jobs.py BUILD

Exit status: 0 all equal, 1 something differs, 77 something is not installed.
"""
import logging
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path

from deepspeed_jobs import clean, prepare
from torch_jobs import Judge, finish, launch

STEPS, SAVED = 8, 4
WAYS = ("ddp", "deepspeed", "fsdp")


# A rank of a job.

def start_rank():
    import torch
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(LOCAL_RANK=os.environ["RANK"], LOCAL_SIZE=os.environ["WORLD_SIZE"], LOCAL_WORLD_SIZE=os.environ["WORLD_SIZE"])
    return int(os.environ["RANK"])


def find_cpu():
    """accelerate ignores FSDP on a CPU that it was asked for, and not on one that it has found."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType
    os.environ.pop("ACCELERATE_USE_CPU", None)
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    PartialState._prepare_backend = lambda self, *words, **others: ("gloo", DistributedType.MULTI_GPU)


def require_way(accelerator, way):
    from accelerate.utils import DistributedType
    wanted = {"fsdp": DistributedType.FSDP, "deepspeed": DistributedType.DEEPSPEED}
    if way in wanted and accelerator.distributed_type != wanted[way]:
        sys.exit(f"the run is {accelerator.distributed_type}, and not {way}")


def make_trainer(way, folder, ours, **settings):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
    if way == "fsdp":
        find_cpu()
    set_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=53, n_positions=16, n_embd=24, n_layer=2, n_head=2, resid_pdrop=0.1))
    rows = torch.randint(0, 53, (96, 12), generator=torch.Generator().manual_seed(5))
    ways = {"ddp": {}, "fsdp": {"fsdp": "full_shard", "fsdp_config": {"fsdp_version": 2, "state_dict_type": "SHARDED_STATE_DICT"}},
            "deepspeed": {"deepspeed": {"zero_optimization": {"stage": 3}, "zero_allow_untested_optimizer": True,
                                        "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto"}}}
    ranks = int(os.environ["WORLD_SIZE"])
    arguments = TrainingArguments(folder, max_steps=STEPS, save_steps=1, logging_steps=1, per_device_train_batch_size=12 // ranks,
                                  use_cpu=way != "fsdp", learning_rate=1e-2, report_to=[], disable_tqdm=True, seed=3, optim="adamw_torch",
                                  ddp_backend="gloo", **ways[way], **settings)

    class Losses(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **others):
            if "loss" in (logs or {}) and state.is_world_process_zero:
                with open(Path(folder).parent / "losses", "a") as file:
                    file.write(f"{state.global_step} {logs['loss']!r} {logs.get('grad_norm')!r}\n")

    trainer = Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows], callbacks=[Losses()])
    require_way(trainer.accelerator, way)
    if ours:
        import unishard.integrations.transformers
        unishard.integrations.transformers.patch(trainer)
    return trainer


def rank_of_trainer(folder, way, ours, resume):
    """A run of the Trainer; resume: yes, no, or the checkpoint to go on from."""
    start_rank()
    trainer = make_trainer(way, str(folder / "out"), ours == "ours", save_total_limit=None if resume == "no" else 2)
    import unishard.integrations.transformers
    found = unishard.integrations.transformers.last_checkpoint(folder / "out") if resume == "yes" else None
    trainer.train(resume_from_checkpoint=resume if resume not in ("yes", "no") else found is not None)


def rank_of_accelerate(folder, way, ours, resume):
    import torch
    from accelerate import Accelerator, DeepSpeedPlugin, FullyShardedDataParallelPlugin
    from accelerate.utils import set_seed
    rank = start_rank()
    plugins = {"fsdp": lambda: {"fsdp_plugin": FullyShardedDataParallelPlugin(fsdp_version=2)}, "ddp": dict,
               "deepspeed": lambda: {"deepspeed_plugin": DeepSpeedPlugin(zero_stage=2, gradient_clipping=1.0)}}[way]()
    if way == "fsdp":
        find_cpu()
    accelerator = Accelerator(cpu=way != "fsdp", **plugins)
    require_way(accelerator, way)
    set_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(7, 20), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(20, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.utils.data.TensorDataset(torch.randn(96, 7, generator=torch.Generator().manual_seed(2)), torch.arange(96) % 3)
    loader = torch.utils.data.DataLoader(data, batch_size=12 // int(os.environ["WORLD_SIZE"]), shuffle=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    place, first = folder / "state", 0
    if ours == "ours":
        import unishard.integrations.accelerate as ua
        load, save = (lambda: ua.load_state(accelerator, place)), (lambda: ua.save_state(accelerator, place, step=SAVED))
    else:
        load, save = (lambda: accelerator.load_state(str(place))), (lambda: accelerator.save_state(str(place)))
    if resume == "yes":
        load()
        first, loader = SAVED, accelerator.skip_first_batches(loader, SAVED)
    for step, (values, classes) in enumerate(loader, first):
        if step == SAVED and resume == "no":
            save()
        loss = torch.nn.functional.cross_entropy(model(values), classes)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if rank == 0:
            with open(folder / "losses", "a") as file:
                file.write(f"{step} {loss.item().hex()} {scheduler.get_last_lr()}\n")


def rank_of_lightning(folder, ours, resume):
    import torch
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    rank, ranks = start_rank(), int(os.environ["WORLD_SIZE"])

    class Module(lightning.LightningModule):
        def __init__(self, width=20):
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Sequential(torch.nn.Linear(7, width), torch.nn.Dropout(0.2), torch.nn.BatchNorm1d(width),
                                           torch.nn.Linear(width, 3))

        def training_step(self, batch, number):
            loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            if rank == 0:
                with open(folder / "losses", "a") as file:
                    file.write(f"{self.global_step} {loss.item().hex()}\n")
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    class Seeds(lightning.Callback):
        """Lightning keeps no random states: dropout is a function of the step."""

        def on_train_batch_start(self, trainer, module, batch, number):
            torch.manual_seed(1000 * trainer.global_step + rank)

    lightning.seed_everything(1, verbose=False)
    model = Module()
    data = torch.utils.data.TensorDataset(torch.randn(48, 7, generator=torch.Generator().manual_seed(2)), torch.arange(48) % 3)
    loader = torch.utils.data.DataLoader(data, batch_size=12 // ranks)
    plugins = []
    if ours == "ours":
        import unishard.integrations.lightning
        plugins = [unishard.integrations.lightning.CheckpointIO()]
    saving = ModelCheckpoint(folder / "saved", filename="{step}", save_top_k=-1, every_n_train_steps=2)
    trainer = lightning.Trainer(accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto", max_epochs=STEPS // 4,
                                logger=False, enable_progress_bar=False, enable_model_summary=False, plugins=plugins,
                                callbacks=[saving, Seeds()])
    trainer.fit(model, loader, ckpt_path=str(folder / "saved" / f"step={resume}.ckpt") if resume != "no" else None, weights_only=False)


# The parent: starts ranks and judges.

def run(mode, folder, ranks, *words):
    folder.mkdir(parents=True, exist_ok=True)
    finish(launch(mode, folder, ranks, *words), f"{mode} {' '.join(words)} on {ranks} ranks")
    return losses(folder)


def losses(folder):
    """Returns the last line of each step."""
    path = folder / "losses"
    return {line.split(maxsplit=1)[0]: line for line in path.read_text().splitlines()} if path.exists() else {}


def judge_trainer(judge, folder, way):
    import unishard
    calm = run("trainer", folder / "calm", 2, way, "ours", "no")
    plain = run("trainer", folder / "plain", 2, way, "theirs", "no")
    judge.row(f"Trainer, {way}: has the losses of a trainer without UniShard", calm == plain and len(calm) == STEPS)
    checkpoint = folder / "calm" / "out" / f"checkpoint-{SAVED}"
    files = {path.name for path in checkpoint.iterdir()}
    theirs = {"config.json", "trainer_state.json", "training_args.bin", "rng_state_0.pth", "rng_state_1.pth"}
    others = [one for one in files if one.startswith(("model.", "pytorch_model", "optimizer", "zero_pp"))]
    judge.row(f"Trainer, {way}: its checkpoint has the trainer's files and one of UniShard's, and no other tensors",
              theirs <= files and not others and unishard.verify(checkpoint, deep=True)["ok"])
    # DeepSpeed's own folders load on as many ranks as have saved them, so there is nothing to compare 3 ranks with.
    for ranks, words in ((2, ""), (3, " on 3 ranks"))[:1 if way == "deepspeed" else 2]:
        for side, other in (("calm", "ours"), ("plain", "theirs")):
            shutil.copytree(folder / side / "out" / checkpoint.name, folder / f"{side}{ranks}" / "out" / checkpoint.name)
        mine, other = (folder / f"{side}{ranks}" / "out" / checkpoint.name for side in ("calm", "plain"))
        ours = run("trainer", folder / f"calm{ranks}", ranks, way, "ours", str(mine))
        expected = run("trainer", folder / f"plain{ranks}", ranks, way, "theirs", str(other))
        judge.row(f"Trainer, {way}: resumes{words} as the trainer without UniShard", ours == expected and len(ours) == STEPS - SAVED)
    rough = folder / "rough"
    rough.mkdir()
    for _ in range(3):
        before = len(losses(rough))
        started = launch("trainer", rough, 2, way, "ours", "yes")
        deadline = time.monotonic() + 60
        while len(losses(rough)) < min(before + 2, STEPS - 1) and time.monotonic() < deadline and started[0].is_alive():
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.2))
        for rank in started:
            rank.kill()
        for rank in started:
            rank.join()
    after = run("trainer", rough, 2, way, "ours", "yes")
    judge.row(f"Trainer, {way}: 3 kills: every loss is that of the undisturbed run", after == calm)
    kept = sorted(path.name for path in (folder / "calm2" / "out").glob("checkpoint-*"))
    judge.row(f"Trainer, {way}: save_total_limit", kept == [f"checkpoint-{STEPS - 1}", f"checkpoint-{STEPS}"])


def judge_accelerate(judge, folder, way):
    calm = run("accelerate", folder / "calm", 2, way, "ours", "no")
    plain = run("accelerate", folder / "plain", 2, way, "theirs", "no")
    judge.row(f"accelerate, {way}: has the losses of a run without UniShard", calm == plain and len(calm) == STEPS)
    for ranks in (2, 3) if way != "deepspeed" else (2,):  # DeepSpeed's own folders load on as many ranks as have saved them
        for side in ("calm", "plain"):
            (folder / side / "losses").unlink()
        ours, plain = (run("accelerate", folder / side, ranks, way, whose, "yes") for side, whose in (("calm", "ours"), ("plain", "theirs")))
        judge.row(f"accelerate, {way}: resumes on {ranks} ranks as accelerate does", ours == plain and len(ours) == STEPS - SAVED)


def loads_as_model(ours, theirs):
    import lightning
    import torch
    from unishard.integrations.lightning import load_from_checkpoint

    class Module(lightning.LightningModule):
        def __init__(self, width=2):  # the checkpoint has another width
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Sequential(torch.nn.Linear(7, width), torch.nn.Dropout(0.2), torch.nn.BatchNorm1d(width),
                                           torch.nn.Linear(width, 3))

    expected = Module.load_from_checkpoint(theirs, weights_only=False)
    loaded = [load_from_checkpoint(Module, ours, map_location="cpu"), load_from_checkpoint(Module, theirs, weights_only=False)]
    return all(torch.equal(value, one.state_dict()[name]) for name, value in expected.state_dict().items() for one in loaded)


def judge_lightning(judge, folder):
    import unishard
    calm = run("lightning", folder / "calm", 2, "ours", "no")
    judge.row("Lightning: has the losses of a run without UniShard", calm == run("lightning", folder / "plain", 2, "theirs", "no"))
    saved = folder / "calm" / "saved" / f"step={SAVED}.ckpt"
    with unishard.open(saved) as checkpoint:
        judge.row("Lightning: moments have their parameters' names", checkpoint.states("net.3.weight") == ["fp32", "exp_avg", "exp_avg_sq"])
    judge.row("Lightning: verify --deep", unishard.verify(saved, deep=True)["ok"])
    judge.row("Lightning: diff finds the tensors of its own file", unishard.diff(folder / "plain" / "saved" / saved.name, saved)["equal"])
    judge.row("Lightning: load_from_checkpoint() gives the trained model", loads_as_model(saved, folder / "plain" / "saved" / saved.name))
    for to in ("deepspeed", "deepspeed-universal"):
        unishard.convert(saved, folder / to, to=to)
        with unishard.open(folder / to) as checkpoint:
            judge.row(f"Lightning: BatchNorm's counter is a buffer in {to}", checkpoint.states("net.2.num_batches_tracked") == ["buffer"])
    converted = folder / "converted" / "saved" / saved.name
    converted.parent.mkdir(parents=True)
    unishard.convert(saved, converted, to="torch")
    judge.row("Lightning: Model.load_from_checkpoint() takes a converted checkpoint", loads_as_model(saved, converted))
    judge.row("Lightning: goes on from a converted checkpoint",
              run("lightning", folder / "converted", 2, "theirs", str(SAVED)) == {step: line for step, line in calm.items() if int(step) >= SAVED})
    for ranks in (2, 1):
        for side in ("calm", "plain"):
            (folder / side / "losses").unlink()
        ours = run("lightning", folder / "calm", ranks, "ours", str(SAVED))
        plain = run("lightning", folder / "plain", ranks, "theirs", str(SAVED))
        judge.row(f"Lightning: resumes on {ranks} ranks as Lightning does", ours == plain)
        if ranks == 2:
            rest = {step: line for step, line in calm.items() if int(step) >= SAVED}
            judge.row("Lightning: resumes with the losses of the undisturbed run", ours == rest)


def main():
    if sys.argv[1] == "--rank":
        mode, folder = sys.argv[2], Path(sys.argv[3])
        {"trainer": rank_of_trainer, "accelerate": rank_of_accelerate, "lightning": rank_of_lightning}[mode](folder, *sys.argv[4:])
        sys.stdout.flush()
        os._exit(0)  # Gloo's threads can abort Python's own end: https://github.com/pytorch/pytorch/pull/179291
    prepare(sys.argv[1])
    os.environ.update(ACCELERATE_USE_CPU="true", CUDA_VISIBLE_DEVICES="")
    only = sys.argv[2:]
    judge, folder = Judge(), Path(tempfile.mkdtemp(prefix="unishard-trainers-"))
    parts = [(f"trainer-{way}", lambda judge, path, way=way: judge_trainer(judge, path, way)) for way in WAYS]
    parts += [(f"accelerate-{way}", lambda judge, path, way=way: judge_accelerate(judge, path, way)) for way in WAYS]
    parts += [("lightning", judge_lightning)]
    try:
        for name, part in parts:
            if not only or name in only:
                part(judge, folder / name)
    finally:
        clean(folder)
    return 1 if judge.failed else 0


if __name__ == "__main__":
    sys.exit(main())
