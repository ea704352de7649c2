#!/usr/bin/env bash
# Asks the real libraries: tests/interop/peers/run.sh [--all] BUILD, or --setup [--zoo] alone
# Makes a Python environment in build/peers (5.6 GB from PyPI, versions pinned in requirements.txt; kept for the next run), then
# prints a table for each peer. --setup --zoo also puts the optional libraries of zoo.py and verl_resumes.py into build/zoo (1 GB). --all takes every world size from 1 to 5 at every stage, every fixture row, and real runs of trainers.
# Exit status: 0 all accepted, 1 something was not, 77 the packages cannot be had here.
set -uo pipefail
cd "$(dirname "$0")/../../.."
python=build/peers/bin/python
deepspeed=0.19.8

setup() {
  "$python" -c 'import deepspeed, transformers, h5py, gguf, ml_dtypes, accelerate, peft, lightning' >/dev/null 2>&1 && return
  echo "installing the peers into build/peers"
  python3 -m venv build/peers &&
    "$python" -m pip install -q wheel setuptools ninja py-cpuinfo -r tests/interop/peers/requirements.txt &&
    DS_ACCELERATOR=cpu DS_BUILD_OPS=0 "$python" -m pip install -q --no-build-isolation deepspeed==$deepspeed
}

# Each line of zoo/requirements.txt is a folder of its own, so that two versions of a library can be there. The first package is the
# one that is asked for, others are what it imports.
setup_zoo() {
  local folder package others name
  while read -r folder package others; do
    case $folder in '' | '#'*) continue ;; esac
    name=${package%%==*}
    [ ! -d "build/zoo/$folder/${name//-/_}-${package##*==}.dist-info" ] || continue
    echo "installing $package into build/zoo/$folder"
    rm -rf "build/zoo/$folder"
    # shellcheck disable=SC2086
    "$python" -m pip install -q --no-deps --target "build/zoo/$folder" "$package" $others || { rm -rf "build/zoo/$folder"; return 1; }
  done <tests/interop/peers/zoo/requirements.txt
}
setup || { echo "skipped: the peers could not be installed"; exit 77; }
if [ "${1:-}" = --setup ]; then
  if [ "${2:-}" = --zoo ]; then setup_zoo || { echo "skipped: the libraries of the zoo could not be installed"; exit 77; }; fi
  exit 0
fi

sizes="2 3" rows="--few --tools" few=--few renamed=
if [ "${1:-}" = --all ]; then sizes="1 2 3 4 5" rows="--all --tools" few= renamed=--all; shift; fi
build=${1:?tests/interop/peers/run.sh [--all] BUILD}
export DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 TRANSFORMERS_VERBOSITY=error HF_HUB_OFFLINE=1
program="$(realpath "$build")/bin"
answers=$(mktemp -d)
trap 'rm -rf "$answers"' EXIT
asked=0 printed=0 failed=0

# ask TITLE COMMAND...: starts the command while at most one other runs, because each waits half of its time for imports and files.
# What it says is printed as a whole, in the order of the calls.
ask() {
  while (($(jobs -rp | wc -l) >= 2)); do wait -n; done
  print_answers
  ((asked += 1))
  answer "$answers/$asked" "$@" &
}
answer() {  # answer FILE TITLE COMMAND...
  printf '\n== %s\n' "$2" >"$1"
  local begin=$SECONDS
  {
    "${@:3}" 2>&1 >&3 | grep -v -e WARNING -e CUDA
    local status=${PIPESTATUS[0]}
    echo "($((SECONDS - begin)) s)"
    echo "$status" >"$1.status"
  } >>"$1" 3>&1
}
print_answers() {
  local status
  while [ -s "$answers/$((printed + 1)).status" ]; do
    ((printed += 1))
    cat "$answers/$printed"
    status=$(cat "$answers/$printed.status")
    case $status in
      0 | 77) ;;
      *) failed=1; echo "FAILED: status $status" ;;
    esac
  done
}
ask_script() { ask "$1" "$python" "tests/interop/peers/$2" "$build" "${@:3}"; }

# The longest come first, so that none is left to run alone.
ask_script "torch jobs (DDP, FSDP2, HSDP, tensor-parallel) save and load with unishard.torch" torch_jobs.py
ask_script "torch jobs save and load through torch.distributed.checkpoint with unishard.dcp" dcp_jobs.py
ask_script "DeepSpeed engines save and load with unishard.deepspeed" deepspeed_jobs.py
# shellcheck disable=SC2086
ask_script "DeepSpeed goes on with runs of train_gpt" deepspeed_resumes.py --world-sizes $sizes
ask_script "Muon, SGD, Adagrad, Lion: DeepSpeed goes on with runs of train_gpt, and train_gpt with runs of DeepSpeed" optimizer_resumes.py ${few:+--world-sizes 2 --stages 3}
# shellcheck disable=SC2086
ask_script "DeepSpeed goes on with its own checkpoints, resharded" deepspeed_accepts.py $rows
# shellcheck disable=SC2086
ask_script "DeepSpeed goes on with parallel runs at other sizes" parallel_resumes.py $few
if [ "$sizes" = "1 2 3 4 5" ]; then  # 10 minutes
  ask_script "Trainer, accelerate and Lightning save and load with unishard.integrations" trainer_jobs.py
  ask_script "The Trainer, accelerate and PEFT go on from converted folders" trainer_resumes.py
fi
ask_script "torch.load, safetensors, dcp.load and FSDP2 on runs of train_gpt" torch_accepts.py
ask_script "torch.load and dcp.load find their own keys and values again" torch_keeps.py
ask_script "transformers, bitsandbytes, torchao, compressed-tensors: the values of quantized weights" quantized.py
# shellcheck disable=SC2086
ask_script "transformers and train_gpt: the same logits" model_logits.py $few
# shellcheck disable=SC2086
ask_script "Models of transformers whose files have other names than their modules" renamed_models.py $renamed
ask_script "verl goes on with its runs on other numbers of ranks" verl_resumes.py ${few:+4}
ask_script "FSDP1's LOCAL_STATE_DICT of 2 and 4 ranks has the bits of FULL_STATE_DICT" fsdp1_local.py
ask_script "transformers takes pipelines of DeepSpeed under the names of --layout" pipeline_names.py ${few:+--stages 1}
public="${UNISHARD_FIXTURES:-../shared/fixtures}/public/check.py"
[ ! -f "$public" ] || ask "the inputs of public bug reports" bash -c '"$@" | tee /dev/fd/3 3>&2 | tail -n 1 | grep -q ", 0 failed"' \
  public "$python" "$public" "$program/unishard"
ask "a zoo of small runs: every path is equal, or named" "$python" tests/interop/peers/zoo.py "$program/unishard" --count 1
[ ! -x "$build/tests/loss_scaler_steps" ] || ask_script "the trainer's loss scaler beside DeepSpeed's, with injected overflows" loss_scaling.py
[ ! -x "$build/tests/update_steps" ] || ask_script "the trainer's schedules and optimizers beside DeepSpeed's, over 1,000 steps" update_rules.py
ask_script "every key of DeepSpeed's configuration is in the table, with its default" config_keys.py
ask_script "unishard estimate has DeepSpeed's numbers for 20 models" estimates.py
for test in package dcp torch async runs integrations verl; do
  ask "The Python package with torch: $test" env UNISHARD_LIBRARY_DIR="$program" PYTHONPATH="$PWD/tools/python" PYTHONDONTWRITEBYTECODE=1 \
    "$python" "tests/python/${test}_test.py"
done
ask_script "the gguf package of llama.cpp reads and writes GGUF" gguf_accepts.py
ask "numpy and ml_dtypes read and write .npz" "$python" tests/interop/numpy_exchange.py "$program/unishard=tests/golden/v1/global_step7"
wait
print_answers
((printed == asked)) || { failed=1; echo "FAILED: only $printed of $asked questions were answered"; }
exit $failed
