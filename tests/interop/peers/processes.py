"""Ranks of a job as copies of one process that has imported what they need: an import of DeepSpeed and transformers takes 5 seconds,
for every rank of every launch. Their sets of strings have one order, unlike those of ranks that a launcher starts."""
import multiprocessing
import os
import sys

for variable, value in (("DS_ACCELERATOR", "cpu"), ("OMP_NUM_THREADS", "1"), ("TOKENIZERS_PARALLELISM", "false")):
    os.environ.setdefault(variable, value)  # which the imports read
TORCH = ["numpy", "torch", "torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp",
         "torch.distributed.tensor.parallel", "torch.optim.adamw"]
DEEPSPEED = ["numpy", "torch", "deepspeed", "deepspeed.checkpoint"]
GPT2 = [*DEEPSPEED, "transformers.models.gpt2.modeling_gpt2"]


def _begin(function, arguments, environment, output):
    os.environ.update(environment)
    os.setsid()
    if output is not None:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
    function(*arguments)
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads can abort Python's own end: https://github.com/pytorch/pytorch/pull/179291


def start(function, arguments, environment, modules, output=None, is_copy=True):
    """Starts `function(*arguments)`, a function of a module's own, and returns the process. `modules` are imported once, by the first
    call. `output` names the file that gets what it prints. Not `is_copy`: in an interpreter of its own, as a launcher does."""
    context = multiprocessing.get_context("forkserver" if is_copy else "spawn")
    if is_copy:
        context.set_forkserver_preload(modules)
    process = context.Process(target=_begin, args=(function, arguments, dict(environment), output))
    process.start()
    return process


def spawn(function, arguments, world_size, modules):
    """torch.multiprocessing.spawn() with copies of one process that has imported `modules`."""
    from torch.multiprocessing import start_processes
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
    start_processes(function, args=arguments, nprocs=world_size, start_method="forkserver")
