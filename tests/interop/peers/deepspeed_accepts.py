#!/usr/bin/env python3
"""Asks the real DeepSpeed whether it resumes from what UniShard writes, bit for bit.

  deepspeed_accepts.py BUILD [--only CASE] [--few | --all] [--tools]

BUILD is a build folder with the target `write_deepspeed`. For every row below a fixture's state is written for the row's world
size and stage, and engines of that size and stage load it (UNISHARD_PEERS/ds_accept.py): state, weights, buffers, settings
and the next losses must be those of an engine that was given the state directly. A row takes half a minute to two.
--few takes four rows of different kinds; --all adds every world size from 1 to 4 at every stage; --tools asks zero_to_fp32 and ds_to_universal too.

UNISHARD_FIXTURES and UNISHARD_PEERS name the shared folders (default ../shared/fixtures, ../shared/peers). Exit status: 0 all
accepted, 1 something differs or was refused, 77 something is not installed.
"""
import argparse
import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import truth

HERE = pathlib.Path(__file__).resolve().parent
SHARED = HERE.parents[2].parent / "shared"
FIXTURES = pathlib.Path(os.environ.get("UNISHARD_FIXTURES", SHARED / "fixtures")) / "deepspeed"
PEERS = pathlib.Path(os.environ.get("UNISHARD_PEERS", SHARED / "peers"))

# case, world size, stage, universal
ROWS = [
    ("stage2_two_groups_frozen_tied", 3, 2, False),
    ("stage2_two_groups_frozen_tied", 2, 1, False),
    ("stage2_two_groups_frozen_tied", 1, 0, False),
    ("stage2_two_groups_frozen_tied", 4, 3, False),
    ("stage2_two_groups_frozen_tied", 1, 2, True),
    ("stage2_bf16", 1, 3, False),
    ("stage3_bf16_two_groups_frozen", 2, 3, False),
    ("stage2_fp16_dynamic", 2, 2, False),
    ("stage3_fp16_dynamic", 2, 3, False),
    ("stage2_round_robin", 2, 2, False),
    ("stage2_bf16_alignment_round_robin", 3, 2, False),
    ("stage3_sub_groups", 2, 3, False),
    ("stage1_w2_frozen", 2, 1, False),
    ("stage1_bf16_optimizer", 2, 1, False),
    ("stage0_fp32_two_groups_frozen_tied", 2, 0, False),
    ("stage0_bf16", 2, 0, False),
    ("stage0_bf16_fused", 2, 0, False),
]
FEW_ROWS = [ROWS[0], ROWS[6], ROWS[7], ROWS[9]]
ALL_ROWS = [("stage2_two_groups_frozen_tied", w, s, False) for s in range(4) for w in range(1, 5)]


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def run(command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def write(build, row, out):
    case, world, stage, universal = row
    command = [build / "bin" / "write_deepspeed", FIXTURES / case, out, "--world-size", world, "--stage", stage]
    return run(command + (["--universal"] if universal else []))


def worker(job_file):
    """One rank."""
    sys.path.insert(0, str(PEERS))
    import ds_make
    ds_make.worker(job_file)


def launch(job, world_size, folder):
    """ds_make.launch() with copies of one process."""
    import torch
    result = pathlib.Path(folder) / "result.pt"
    result.unlink(missing_ok=True)
    good, text = truth.launch_deepspeed(worker, dict(job, result=str(result)), world_size, result.parent)
    return torch.load(result, weights_only=False) if good else None, text


def ask(row, folder):
    """(verdict, largest loss difference, what differs)"""
    sys.path.insert(0, str(PEERS))
    import ds_accept
    ds_accept.ds_make.launch = launch
    case, world, stage, universal = row
    # Any --set makes ds_accept compare with an engine of this machine instead of recorded losses, whose last bits depend on
    # the processor.
    words = ["ds_accept.py", folder, "--case", FIXTURES / case, "--world-size", world, "--stage", stage, "--set", "steps_per_print=1000"]
    if universal:  # DeepSpeed's universal loader restores neither frozen parameters nor buffers
        words += ["--universal", "--allow", "weights", "buffers", "losses"]
    printed, own, status = io.StringIO(), sys.argv, None
    sys.argv = [str(word) for word in words]
    try:
        with contextlib.redirect_stdout(printed):
            ds_accept.main()
    except SystemExit as ended:
        status = ended.code
    finally:
        sys.argv = own
    text = printed.getvalue()
    worst = re.search(r"largest loss difference: (\S+)", text)
    differs = [line for line in text.splitlines() if "DIFFERS" in line or line.startswith(("REFUSED", "the reference engine failed"))]
    verdict = {0: "accepted", 1: "DIFFERS"}.get(status, "REFUSED")
    return verdict, worst.group(1) if worst else "-", " ".join(differs)[:300]


def tools(job_file):
    """DeepSpeed's own converters on one folder of ours."""
    import torch
    from deepspeed.checkpoint import ds_to_universal
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    from safetensors.torch import load_file
    job = json.loads(pathlib.Path(job_file).read_text())
    folder = job["folder"]
    expected = load_file(os.path.join(job["case"], "expected.safetensors"))
    merged = get_fp32_state_dict_from_zero_checkpoint(folder)
    masters = [k for k in expected if k.endswith("|fp32")]
    bad = [k for k in masters if not torch.equal(merged[k.rsplit("|", 1)[0]].float(), expected[k].float())]
    print(f"zero_to_fp32: {len(masters) - len(bad)} of {len(masters)} masters equal")
    tag = pathlib.Path(folder, "latest").read_text()
    out = os.path.join(folder, "universal")
    sys.argv = ["ds_to_universal", "--input_folder", os.path.join(folder, tag), "--output_folder", out]
    ds_to_universal.main(ds_to_universal.parse_arguments())
    states = [k for k in expected if k.rsplit("|", 1)[1] in ("fp32", "exp_avg", "exp_avg_sq")]

    def stored(key):
        name, state = key.rsplit("|", 1)
        value = torch.load(os.path.join(out, "zero", name, state + ".pt"), weights_only=False)
        return (value["param"] if isinstance(value, dict) else value).reshape(expected[key].shape)

    wrong = [k for k in states if not torch.equal(stored(k), expected[k])]
    print(f"ds_to_universal: {len(states) - len(wrong)} of {len(states)} states equal")
    if bad or wrong:
        raise SystemExit(1)


def ask_tools(build):
    """Returns whether a converter of DeepSpeed failed on a folder of ours."""
    failed = False
    for row in (("stage2_two_groups_frozen_tied", 3, 2, False), ("stage2_two_groups_frozen_tied", 3, 3, False),
                ("stage2_round_robin", 2, 2, False)):
        with tempfile.TemporaryDirectory() as folder:
            written = write(build, row, folder)
            good, text = written.returncode == 0, written.stderr
            if good:
                good, text = truth.launch_deepspeed(tools, {"folder": folder, "case": str(FIXTURES / row[0])}, 1, pathlib.Path(folder, "job"))
            lines = [x for x in text.splitlines() if x.startswith(("zero_to_fp32:", "ds_to_universal:"))]
            print(f"{row[0]} W={row[1]} stage {row[2]}: {'; '.join(lines) or text[-300:]}")
            failed |= not good
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", metavar="CASE")
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--tools", action="store_true")
    args = parser.parse_args()
    if not (args.build / "bin" / "write_deepspeed").exists():
        skip(f"no write_deepspeed in {args.build}/bin: build that target")
    if not FIXTURES.is_dir() or not (PEERS / "ds_accept.py").exists():
        skip(f"no {FIXTURES} or no {PEERS}/ds_accept.py (UNISHARD_FIXTURES, UNISHARD_PEERS)")
    truth.require("deepspeed", "transformers")
    os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # DeepSpeed builds with the ninja there

    rows = [row for row in (FEW_ROWS if args.few else ROWS) + (ALL_ROWS if args.all else []) if args.only in (None, row[0])]
    failed = 0
    print(f"{'case':36} {'W':>2} stage {'kind':9} {'loss difference':>16}  verdict")
    for row in dict.fromkeys(rows):
        with tempfile.TemporaryDirectory() as folder:
            written = write(args.build, row, folder)
            answer = ("NOT WRITTEN", "-", written.stderr.strip())
            if written.returncode == 0:
                answer = ask(row, folder)
        verdict, worst, differs = answer
        failed += verdict != "accepted"
        kind = "universal" if row[3] else "ordinary"
        print(f"{row[0]:36} {row[1]:>2} {row[2]:>5} {kind:9} {worst:>16}  {verdict} {differs}", flush=True)
    if args.tools:
        failed += ask_tools(args.build)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
