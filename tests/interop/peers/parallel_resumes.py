#!/usr/bin/env python3
"""Real DeepSpeed resumes parallel runs at other sizes from what UniShard writes, bit for bit.

  parallel_resumes.py BUILD [--only CASE] [--kind universal|plain|experts|regular] [--few]

Each row takes a run that real DeepSpeed saved with pipeline, tensor or expert parallelism (UNISHARD_FIXTURES/parallel). A universal
folder of it is loaded at another number of pipeline stages, tensor-parallel and data-parallel ranks; a plain ZeRO folder of it, at any
world size and stage, by the same model without parallelism; folders of mixtures of experts, at another ep_size; an ordinary folder, at
another number of stages and tensor-parallel ranks, with DeepSpeed's default division of the layers. Masters and both moments must be those that the run had in memory, rows of
padding of the vocabulary must be 0, and the next losses must be those of the run that went on, where the ranks' sums allow.
The models are those of UNISHARD_PEERS/pp_make.py. Exit status: 0 all equal, 1 something differs, 77 something is not installed.
"""
import argparse
import copy
import json
import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SHARED = HERE.parents[2].parent / "shared"
FIXTURES = pathlib.Path(os.environ.get("UNISHARD_FIXTURES", SHARED / "fixtures")) / "parallel"
PEERS = pathlib.Path(os.environ.get("UNISHARD_PEERS", SHARED / "peers"))

# case; stages, tensor-parallel and data-parallel ranks
UNIVERSAL = [
    ("pp2_stage1_fp32", (1, 1, 1)), ("pp2_stage1_fp32", (3, 1, 1)), ("pp2_stage1_fp32", (2, 1, 2)),
    ("pp2_stage1_bf16_tied", (2, 1, 1)), ("pp2_stage1_bf16_tied", (1, 1, 2)), ("pp2dp2_stage1_bf16", (4, 1, 1)),
    ("pp2dp2_stage1_bf16", (1, 1, 1)),
    ("mg_tp2_stage1_fp32", (1, 1, 1)), ("mg_tp2_stage1_fp32", (1, 2, 2)), ("mg_tp2_stage1_fp32", (1, 4, 1)),
    ("mg_tp2dp2_stage2_bf16_tied", (1, 4, 1)), ("mg_tp2dp2_stage2_bf16_tied", (1, 1, 2)),
    ("mg_pp2tp2_stage1_bf16_tied", (1, 1, 1)), ("mg_pp2tp2_stage1_bf16_tied", (2, 1, 1)), ("mg_pp2tp2_stage1_bf16_tied", (1, 4, 1)),
    ("mg_pp2tp2_stage1_bf16_tied", (2, 2, 1)),
    ("autotp2_stage1_bf16", (1, 1, 2)), ("autotp2_stage1_fp32_phi3", (1, 1, 1)), ("autotp2_stage1_fp32_uneven_bias", (1, 2, 1)),
    ("moe_ep2_stage2_fp32_two_layers", (1, 1, 1)), ("moe_ep2_stage2_fp32_two_layers", (1, 1, 2)), ("moe_ep2dp4_stage2_bf16", (1, 1, 2)),
]
# case; world size and stage of a run without parallelism
PLAIN = [
    ("pp2_stage1_fp32", (1, 0)), ("pp2_stage1_fp32", (2, 3)), ("pp2_stage1_bf16_tied", (2, 2)), ("pp2_stage0_fp32", (1, 1)),
    ("pp2dp2_stage1_bf16", (4, 1)), ("autotp2_stage1_bf16", (2, 3)), ("autotp2dp2_stage3_fp32", (1, 2)),
]
# case; world size, stage and ep_size
EXPERTS = [
    ("moe_ep2_stage2_fp32_two_layers", (2, 2, 2)), ("moe_ep2_stage2_fp32_two_layers", (4, 1, 2)), ("moe_ep2_stage2_fp32_two_layers", (2, 0, 1)),
    ("moe_ep2dp4_stage2_bf16", (4, 2, 4)), ("moe_ep2dp4_stage2_bf16", (2, 1, 2)), ("moe_ep2dp4_stage1_fp32_data_first", (4, 2, 2)),
    ("moe_ep4_and_ep2_stage2_fp32_groups", (4, 2, 2)), ("moe_ep2_stage0_fp32", (2, 1, 2)), ("moe_ep2_stage0_fp32", (4, 0, 4)),
]
# case; stages, tensor-parallel and data-parallel ranks, and stage of ZeRO
REGULAR = [
    ("mg_tp2_stage1_fp32", (1, 4, 1, 1)), ("mg_tp2_stage1_fp32", (1, 2, 2, 2)), ("mg_tp2_stage1_fp32", (1, 2, 1, 0)),
    ("mg_tp2_stage1_fp32", (1, 2, 2, 3)), ("mg_tp2dp2_stage2_bf16_tied", (1, 4, 1, 2)),
    ("mg_tp2dp2_stage2_bf16_tied", (1, 2, 1, 0)), ("mg_tp2dp2_stage3_bf16", (1, 4, 1, 3)),
    ("autotp2_stage1_bf16", (1, 2, 2, 1)), ("autotp2_stage1_fp32_phi3", (1, 2, 1, 2)),
    ("pp2_stage1_fp32", (1, 1, 2, 1)), ("pp2_stage1_fp32", (3, 1, 1, 1)), ("pp2_stage1_fp32", (4, 1, 1, 1)), ("pp2_stage1_fp32", (3, 1, 1, 0)),
    ("pp2dp2_stage1_bf16", (4, 1, 1, 1)), ("pp2dp2_stage1_bf16", (3, 1, 2, 1)), ("pp2_stage1_bf16_tied", (3, 1, 1, 1)),
    ("pp2_stage1_fp32_groups_frozen", (3, 1, 1, 1)),
    ("mg_pp2tp2_stage1_bf16_tied", (2, 4, 1, 1)), ("mg_pp2tp2_stage1_bf16_tied", (3, 2, 1, 1)),
]
# How AutoTP cuts the models of the cases.
CUTS = {"tp_replicated_parameter_patterns": [r".*norm\.weight", r".*embed_tokens\.weight"],
        "parameter_with_row_parallelism_patterns": [r".*\.o_proj\.weight", r".*\.down_proj\.weight"]}
FUSED = {"tp_replicated_parameter_patterns": CUTS["tp_replicated_parameter_patterns"] + [r"lm_head\.weight"],
         "parameter_with_sub_params": [{"patterns": [r".*\.qkv_proj\.weight"], "shape": [[16, 8, 8], -1], "partition_dim": 0},
                                       {"patterns": [r".*\.gate_up_proj\.weight"], "shape": [2, -1], "partition_dim": 0}]}
FEW = (UNIVERSAL[1], UNIVERSAL[9]), (PLAIN[1],), (EXPERTS[3],), (REGULAR[0], REGULAR[11], REGULAR[18])


def peers_module():
    sys.path.insert(0, str(PEERS))
    import pp_make
    return pp_make


def launch(job, world_size, results):
    """pp_make.launch() with copies of one process. Returns the ranks' results, or None, and what they have printed."""
    import torch
    import truth
    good, text = truth.launch_deepspeed(worker, dict(job, results=str(results)), world_size, results)
    return [torch.load(results / f"rank{rank}.pt", weights_only=False) for rank in range(world_size)] if good else None, text


def worker(job_file):
    """One rank; a case of the kind "whole" is a pipeline's layers in one module."""
    pp_make = peers_module()
    from deepspeed.runtime import utils
    balanced = utils.partition_balanced  # its numbers are numpy's, which random.seed() of a layer refuses
    utils.partition_balanced = lambda **arguments: [int(part) for part in balanced(**arguments)]
    if json.loads(pathlib.Path(job_file).read_text())["case"]["kind"] == "whole":
        pp_make.hf_model = pp_make.WholePipe
    return pp_make.worker(job_file)


def load_case(name):
    return json.loads((FIXTURES / name / "case.json").read_text())


def universal_job(name, size, folder, unishard):
    run(unishard, "convert", "-q", "--to", "deepspeed-universal", FIXTURES / name / "checkpoint", folder)
    case = load_case(name)
    pp, tp, dp = size
    case.update(pp=pp, tp=tp, dp=dp, world_size=pp * tp * dp)
    if case["kind"] == "autotp":
        case["config"]["tensor_parallel"]["autotp_size"] = tp
        if tp == 1:
            del case["config"]["tensor_parallel"]
    for layer in case["model"].get("moe", []):
        layer["ep"] = 1
    return case


def plain_job(name, size, folder, unishard):
    world_size, stage = size
    run(unishard, "convert", "-q", "--to", "deepspeed", "--world-size", world_size, "--stage", stage, FIXTURES / name / "checkpoint", folder)
    case = load_case(name)
    case.update(pp=1, tp=1, dp=world_size, world_size=world_size, stage=stage)
    case["config"]["zero_optimization"] = {"stage": stage}
    case["config"].pop("tensor_parallel", None)
    if case["kind"] == "pipe":
        case["kind"] = "whole"
    return case


def expert_job(name, size, folder, unishard):
    world_size, stage, ep_size = size
    run(unishard, "reshard", "-q", "-w", world_size, "-s", stage, "--ep-size", ep_size, FIXTURES / name / "checkpoint", folder)
    case = load_case(name)
    case.update(dp=world_size, world_size=world_size, stage=stage)
    case["config"].setdefault("zero_optimization", {})["stage"] = stage
    for layer in case["model"]["moe"]:
        layer["ep"] = ep_size
    return case


def regular_job(name, size, folder, unishard):
    pp, tp, dp, stage = size
    case = load_case(name)
    model, options = case["model"], ["-w", pp * tp * dp, "-s", stage]
    if case["kind"] == "autotp":
        rules = folder.with_suffix(".json")
        rules.write_text(json.dumps({"cuts": CUTS | (FUSED if model["hf"] == "Phi3" else {})}))
        options += ["--tensor", tp, "--merge-rules", rules]
        case["config"]["tensor_parallel"]["autotp_size"] = tp
    elif case["kind"] == "megatron" or case["tp"] > 1:
        options += ["--tensor", tp, "--vocab-multiple", model["multiple"]]
    if case["kind"] == "pipe":
        frozen = "frozen" in model  # DeepSpeed counts what this run freezes afterwards
        options += ["--pipeline-parts", "0,3,5,7"] if frozen else ["--pipeline", pp]
        if model.get("tied"):
            options += ["--tied-layers", f"embed=0,{model['blocks'] + 2 + (not model.get('no_function'))}"]
        case["partition"] = "uniform" if frozen else "parameters"
    run(unishard, "reshard", "-q", *options, FIXTURES / name / "checkpoint", folder)
    case.update(pp=pp, tp=tp, dp=dp, world_size=pp * tp * dp, stage=stage)
    case["config"].setdefault("zero_optimization", {})["stage"] = stage
    return case


JOBS = {"universal": universal_job, "plain": plain_job, "experts": expert_job, "regular": regular_job}
SIZES = {"universal": "pp {} tp {} dp {}", "plain": "world size {} stage {}", "experts": "world {} stage {} ep {}",
         "regular": "pp {} tp {} dp {} stage {}"}


def run(*command):
    import truth
    truth.run(*command)


def without_padding(states, wanted):
    """Cuts rows behind those of the truth off, which must be 0; returns the names of those that are not."""
    wrong = []
    for name, by_state in states.items():
        for key, tensor in by_state.items():
            rows = wanted.get(name, {}).get(key, tensor).shape
            if rows and tensor.shape[0] > rows[0]:
                if tensor[rows[0]:].any():
                    wrong.append(f"{name} [{key}] has padding that is not 0")
                by_state[key] = tensor[:rows[0]]
    return wrong


def wanted_losses(name):
    """The run's own next losses; of one whose ranks had different copies, those after DeepSpeed's own conversion, if known."""
    twin = FIXTURES / f"universal_{name}" / "case.json"
    if twin.exists():
        return [float.fromhex(text) for text in json.loads(twin.read_text())["checks"]["resume_losses"]]
    if name.startswith("mg_"):
        return None
    return [step["loss"] for step in load_case(name)["losses_after"]]


def differences(pp_make, name, case, ranks):
    source = load_case(name)
    truth, _ = pp_make.expected_of(FIXTURES / name)
    whole = pp_make.whole_shapes(source)

    def joined(key):
        return pp_make.assemble(dict(case, kind=source["kind"]), ranks, whole, lambda rank: {n: s[key] for n, s in rank["state"].items() if key in s})

    by_state = {key: joined(key) for key in pp_make.STATES}
    states = {n: {key: by_state[key][n] for key in pp_make.STATES if n in by_state[key]} for n in by_state["fp32"]}
    wrong = without_padding(states, truth)
    found = pp_make.compare(truth, states)
    if found != "equal":
        wrong.append(f"states: {found}")
    losses, wanted = [step["loss"] for step in ranks[0]["after"]], wanted_losses(name)
    near = 2e-3 if case["config"].get("bf16", {}).get("enabled") else 2e-4  # ranks add in another order
    if wanted and name.startswith("mg_") and case["tp"] != source["tp"]:
        wanted = wanted[:1]  # its update depends on the number of ranks, which sum a gain's gradients for themselves
    if wanted and any(abs(a - b) > near * abs(b) for a, b in zip(losses, wanted)):
        wrong.append(f"losses {losses}, not {wanted}")
    return wrong


def check(pp_make, unishard, kind, name, size):
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "written"
        case = JOBS[kind](name, size, folder, unishard)
        job = {"do": "load", "case": copy.deepcopy(case), "checkpoint": str(folder), "universal": kind == "universal"}
        ranks, log = launch(job, case["world_size"], pathlib.Path(scratch) / "ranks")
        if ranks is None:
            return [f"not loaded: {pp_make.base.last_error(log)[-600:]}"]
        return differences(pp_make, name, case, ranks)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", metavar="CASE")
    parser.add_argument("--kind", choices=tuple(JOBS))
    parser.add_argument("--few", action="store_true")
    options = parser.parse_args()
    import truth
    truth.require("torch", "deepspeed", "transformers")
    if not FIXTURES.is_dir() or not (PEERS / "pp_make.py").exists():
        print(f"skipped: no {FIXTURES} or no {PEERS}/pp_make.py (UNISHARD_FIXTURES, UNISHARD_PEERS)")
        return 77
    pp_make, failed = peers_module(), 0
    for kind, rows in zip(JOBS, FEW if options.few else (UNIVERSAL, PLAIN, EXPERTS, REGULAR)):
        for name, size in rows:
            if (options.only and options.only != name) or (options.kind and options.kind != kind):
                continue
            wrong = check(pp_make, options.build.resolve() / "bin/unishard", kind, name, size)
            failed += bool(wrong)
            print(f"{name:36} {kind:9} {SIZES[kind].format(*size):20} {'equal' if not wrong else 'DIFFERS: ' + '; '.join(wrong)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
