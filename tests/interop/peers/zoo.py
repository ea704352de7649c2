#!/usr/bin/env python3
"""Small runs of the real libraries, drawn by a seed, go every path through UniShard's formats and back.

  zoo.py PROGRAM [--seed N] [--count N | --minutes M] [--only KIND ...] [--keep FOLDER] [--verbose]
  zoo.py --list

A maker trains with the real library for two steps, saves as that library does, and takes the truth from memory: weights, masters,
states of the optimizer under the names of the parameters, groups, steps. PROGRAM (build/release/bin/unishard) then inspects, verifies,
merges, converts, reshards and converts back, and the real libraries read the results. The rule is: equal, or named. A tensor or a state
of the input is equal in the result, or the output names it as left out, or the verb refuses with a message. Everything else is a
finding: a silent loss, a wrong value, a name that the model does not have, an internal error, a signal.

--count takes that many runs of each kind (default 3: five minutes for all); --minutes goes on with new seeds until the time is over.
--keep copies inputs and truths of findings there. The optional libraries are in build/zoo (tests/interop/peers/run.sh --setup --zoo);
a kind whose library is missing is skipped. Exit status: 0 everything equal or named, 1 findings, 77 torch is not installed.
"""

import argparse
import concurrent.futures
import contextlib
import faulthandler
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve()
OVERLAYS = HERE.parents[3] / "build" / "zoo"
# kind -> (module below zoo/, function, versions of optional libraries in build/zoo)
KINDS = {
    "torch": ("single", "torch_file", ()),
    "state_dict": ("single", "state_dict", ()),
    "dcp": ("ranks", "dcp", ()),
    "verl": ("ranks", "verl", ()),
    "full": ("ranks", "full", ()),
    "deepspeed": ("ranks", "deepspeed", ()),
    "trainer": ("hub", "trainer", ("bitsandbytes-0.50", "torchao", "galore")),
    "peft": ("hub", "peft", ()),
    "accelerate": ("hub", "accelerate", ()),
    "lightning": ("single", "lightning", ()),
    "bitsandbytes": ("single", "bitsandbytes", ("bitsandbytes-0.50",)),
    "bitsandbytes_old": ("single", "bitsandbytes", ("bitsandbytes-0.45",)),
    "torchao": ("single", "torchao", ("torchao",)),
    "galore": ("single", "galore", ("galore", "bitsandbytes-0.50")),
    "megatron": ("ranks", "megatron", ("megatron-0.16",)),
    "megatron_old": ("ranks", "megatron", ("megatron-0.13",)),
}
LIBRARIES = {
    "deepspeed": "deepspeed",
    "trainer": "transformers",
    "peft": "peft",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "bitsandbytes": "bitsandbytes",
    "bitsandbytes_old": "bitsandbytes",
    "torchao": "torchao",
    "galore": "galore_torch",
    "megatron": "megatron.core",
    "megatron_old": "megatron.core",
}


# ---- the process that makes runs -----------------------------------------------------------------------------------


def make_one(maker, kind, seed, folder):
    """One run in a process of its own, forked from the one that has imported the library."""
    os.setsid()
    import torch

    folder.mkdir(parents=True)
    with open(folder / "maker.log", "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    status = 1
    try:
        faulthandler.dump_traceback_later(150, exit=True)
        torch.manual_seed(seed)
        truth = maker(folder, random.Random(f"{kind}:{seed}"))
        torch.save(truth, folder / "truth.partial")
        os.replace(folder / "truth.partial", folder / "truth.pt")
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def work(kind, seeds, folder):
    """Makes the runs of one kind below `folder`, each in a folder that its seed names. Status 77: the library is missing."""
    warnings.filterwarnings("ignore")
    try:
        import importlib
        import torch._dynamo  # noqa: F401  (before the forks: an optimizer imports it at its first step)
        import torch.distributed.checkpoint.state_dict
        import torch.distributed.fsdp  # noqa: F401

        if kind in LIBRARIES:
            importlib.import_module(LIBRARIES[kind])
        if kind in ("trainer", "peft"):
            import transformers
            from transformers import Trainer  # noqa: F401

            transformers.logging.set_verbosity_error()
        module, function, _ = KINDS[kind]
        maker = getattr(importlib.import_module(f"zoo.{module}"), function)
    except ImportError as missing:
        print(f"SKIPPED {missing}")
        sys.exit(77)
    torch.set_num_threads(1)
    for seed in seeds:
        made = multiprocessing.get_context("fork").Process(target=make_one, args=(maker, kind, seed, folder / str(seed)))
        made.start()
        made.join(180)
        with contextlib.suppress(ProcessLookupError):  # writers that Megatron-Core and torch have started stay behind
            os.killpg(made.pid, signal.SIGKILL)


def start_work(kind, seeds, folder):
    """Runs work() in a process that finds the kind's optional libraries. Returns what is missing, or None."""
    overlays = [str(OVERLAYS / name) for name in KINDS[kind][2]]
    path = os.pathsep.join(overlays + ([os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []))
    environment = dict(
        os.environ,
        PYTHONPATH=path,
        OMP_NUM_THREADS="1",
        DS_ACCELERATOR="cpu",
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_VERBOSITY="error",
        TOKENIZERS_PARALLELISM="false",
        PYTHONDONTWRITEBYTECODE="1",
        CUDA_VISIBLE_DEVICES="",
        PATH=f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    )  # DeepSpeed builds with the ninja there
    done = subprocess.run(
        [sys.executable, str(HERE), "--work", kind, "--seeds", ",".join(map(str, seeds)), "--folder", str(folder)],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode == 77:
        return next((line[8:] for line in done.stdout.splitlines() if line.startswith("SKIPPED ")), "the library is missing")
    return None if done.returncode == 0 else f"the maker ended with status {done.returncode}: {done.stderr[-500:]}"


# ---- the process that judges ---------------------------------------------------------------------------------------


class Score:
    def __init__(self, options):
        self.options, self.cases, self.paths, self.failed, self.refused = options, 0, 0, 0, 0
        self.skipped, self.unmade = {}, []

    def add(self, kind, seed, folder):
        """Judges one run and prints its findings."""
        import torch
        from zoo.judge import Judge

        if not (folder / "truth.pt").exists():
            self.unmade.append(f"{kind} {seed}: {last_line(folder / 'maker.log')}")
            return
        truth = torch.load(folder / "truth.pt", weights_only=False)
        scratch = folder / "scratch"
        scratch.mkdir()
        self.cases += 1
        verdicts = Judge(self.options.program, truth, folder, scratch).all()
        found = [verdict for verdict in verdicts if verdict.problems]
        self.paths += len(verdicts)
        self.failed += len(found)
        self.refused += sum(verdict.refused is not None for verdict in verdicts)
        paths = {}
        for verdict in found:
            paths.setdefault(
                "; ".join(verdict.problems[:2]) + (f" (and {len(verdict.problems) - 2} more)" if len(verdict.problems) > 2 else ""), []
            ).append(verdict.path)
        for problem, places in paths.items():
            others = f" (and {len(places) - 1} other paths)" if len(places) > 1 else ""
            print(f"FINDING seed {seed}, {kind} ({truth['about']}): {places[0]}{others}: {problem}", flush=True)
        if found:
            print(f"  repeat: {' '.join(('zoo.py', str(self.options.program), '--seed', str(seed), '--count 1 --only', kind))}", flush=True)
        if self.options.verbose:
            for verdict in verdicts:
                word = (
                    "FAILED"
                    if verdict.problems
                    else "refused: " + verdict.refused.strip().splitlines()[-1][:200]
                    if verdict.refused is not None
                    else "passed"
                )
                print(f"  {kind} {seed} {verdict.path}: {word}", flush=True)
        scratch.rmdir()
        if found and self.options.keep:
            shutil.copytree(folder, self.options.keep / f"{kind}-{seed}", dirs_exist_ok=True)


def last_line(log):
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.exists() else []
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["no message"])[0][:200]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", type=pathlib.Path, help="unishard")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--count", type=int, default=3, help="runs of each kind (default 3)")
    parser.add_argument("--minutes", type=float, help="go on with new seeds for so long")
    parser.add_argument("--only", nargs="+", choices=KINDS, metavar="KIND", help="these kinds of runs")
    parser.add_argument("--keep", type=pathlib.Path, help="copy inputs and truths of findings there")
    parser.add_argument("--verbose", action="store_true", help="print a line for each path")
    parser.add_argument("--list", action="store_true", help="list the kinds")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--seeds", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work(options.work, [int(seed) for seed in options.seeds.split(",")], options.folder)
    if options.list:
        print("\n".join(f"{kind:18} {' '.join(overlays)}" for kind, (_, _, overlays) in KINDS.items()))
        return 0
    if options.program is None:
        parser.error("the program is missing")
    options.program = options.program.resolve()
    try:
        import torch
    except ImportError as missing:
        print(f"skipped: {missing}")
        return 77
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    os.environ.update(DS_ACCELERATOR="cpu", HF_HUB_OFFLINE="1", TORCH_CPP_LOG_LEVEL="ERROR")
    sys.path += [
        str(OVERLAYS / name) for name in ("torchao", "galore", "bitsandbytes-0.50") if (OVERLAYS / name).exists()
    ]  # classes in files of torch.save
    kinds, score, end = options.only or list(KINDS), Score(options), options.minutes and time.monotonic() + 60 * options.minutes
    seed = options.seed
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(1) as makers:
        while True:
            seeds = range(seed, seed + options.count)
            jobs = [(kind, pathlib.Path(scratch) / kind) for kind in kinds if kind not in score.skipped]
            made = [makers.submit(start_work, kind, seeds, folder) for kind, folder in jobs]
            for (kind, folder), job in zip(jobs, made):
                problem = job.result()  # the next kind is made while this one is judged
                if problem:
                    score.skipped[kind] = problem
                for one in seeds if folder.exists() else ():
                    score.add(kind, one, folder / str(one))
                shutil.rmtree(folder, ignore_errors=True)
            seed += options.count
            if end is None or time.monotonic() > end:
                break
    for kind, reason in score.skipped.items():
        print(f"skipped {kind}: {reason}")
    for line in score.unmade:
        print(f"not made: {line}")
    print(
        f"{score.cases} runs, {score.paths} paths: {score.paths - score.failed} passed "
        f"({score.refused} refused with a reason), {score.failed} failed; "
        f"{len(score.skipped)} kinds skipped, {len(score.unmade)} runs not made"
    )
    return 1 if score.failed or not score.cases else 0  # a run that its own library cannot save is no finding


if __name__ == "__main__":
    sys.exit(main())
