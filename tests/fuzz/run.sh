#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs each for a while, two at a time:
#   tests/fuzz/run.sh [--fast | --unguided] [SECONDS, default 60] [TARGET...]
#   tests/fuzz/run.sh --coverage [TARGET...]
#   tests/fuzz/run.sh --build [TARGET...]
# AddressSanitizer and UndefinedBehaviorSanitizer watch; --fast leaves them out for many more executions a second. --unguided
# also leaves out the instrumentation that guides libFuzzer and mutates small inputs that guided runs have kept: some five
# times the executions, and nothing is added to the corpus. --build only builds.
# Seeds: the real files of UNISHARD_FIXTURES where they are, the small
# inputs of tests/fuzz/corpus, and what earlier runs found worth keeping (build/fuzz/corpus). A finding is left in
# build/fuzz/findings/ and makes the status 1. --coverage runs every seed once and prints which part of each reader's lines ran
# (llvm-cov and llvm-profdata of Debian's llvm-16).
set -euo pipefail
cd "$(dirname "$0")/../.."
sanitize=address,undefined
build=build/fuzz
flags="-O1 -gline-tables-only"   # half the time to build
longest=16384   # bytes of an input: small ones find as much, many times faster
unguided=       # options of libFuzzer
coverage=
only_build=
case "${1:-}" in
  --fast) sanitize=; build=build/fuzz-fast; flags=-O2; shift ;;
  --unguided)
    sanitize= build=build/fuzz-unguided longest=600 unguided="-keep_seed=1 -entropic=0 -reload=0"
    flags="-O2 -fno-sanitize-coverage=trace-cmp -fsanitize-coverage-allowlist=$PWD/$build/instrumented.txt"
    mkdir -p "$build"
    printf 'src:*\nfun:LLVMFuzzerTestOneInput\n' >"$build/instrumented.txt"
    shift ;;
  --coverage)
    sanitize= build=build/fuzz-coverage coverage=1
    flags="-O1 -fprofile-instr-generate -fcoverage-mapping"
    PATH=$PATH:/usr/lib/llvm-16/bin
    type -P llvm-cov llvm-profdata >/dev/null || { echo "--coverage needs llvm-cov and llvm-profdata: apt-get install llvm-16"; exit 2; }
    shift ;;
  --build) only_build=1; shift ;;
esac
[ -n "$coverage$only_build" ] || { seconds=${1:-60}; shift || true; }
targets=${*:-pickle torch_file safetensors npz gguf manifest shard deepspeed dcp}
fixtures=${UNISHARD_FIXTURES:-../shared/fixtures}

mkdir -p "$build"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="$flags" -DCMAKE_C_COMPILER=clang-16 -DCMAKE_CXX_COMPILER=clang++-16 \
  -DUNISHARD_SANITIZE="$sanitize" -DUNISHARD_FUZZ=ON -DUNISHARD_BUILD_TRAINER=OFF -DUNISHARD_BUILD_TESTS=ON \
  -DUNISHARD_WARNINGS_AS_ERRORS=ON -DCMAKE_UNITY_BUILD=ON >"$build/configure.log" 2>&1 || { cat "$build/configure.log"; exit 1; }
# shellcheck disable=SC2046
ninja -C "$build" $(for target in $targets; do echo "${target}_fuzz"; done)
[ -z "$only_build" ] || exit 0

seeds=$build/seeds corpus=build/fuzz/corpus findings=build/fuzz/findings
mkdir -p "$findings"
for target in $targets; do mkdir -p "$seeds/$target" "$corpus/$target"; done
seed() {  # seed TARGET FOLDER FIND-EXPRESSION...
  local target=$1 folder=$2; shift 2
  [ ! -d "$folder" ] || find "$folder" -size -${longest}c "$@" -exec cp -f --backup=numbered -t "$seeds/$target/" {} + 2>/dev/null || true
}
rm -rf "${seeds:?}"/*/*
seed_folders() {  # seed_folders TARGET FILE: every fixture that has FILE, as a zip archive
  python3 - "$fixtures" "$seeds/$1" "$2" <<'P'
import pathlib, sys, zipfile
fixtures, seeds, file = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
seeds.mkdir(parents=True, exist_ok=True)
for folder in fixtures.glob("*/*/checkpoint"):
    if not any(folder.rglob(file)):
        continue
    with zipfile.ZipFile(seeds / f"{folder.parent.name}.zip", "w", zipfile.ZIP_DEFLATED) as out:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                out.write(path, path.relative_to(folder.parent))
P
}
seed torch_file "$fixtures" \( -name '*.pt' -o -name '*.bin' -o -name '*.pth' \)
seed safetensors "$fixtures" -name '*.safetensors'
seed torch_file tests/golden/torch -type f
seed pickle "$fixtures" -name '.metadata'
seed manifest tests/golden -name manifest.json
seed_folders deepspeed '*_model_states.pt'
seed_folders dcp .metadata
for target in $targets; do python3 -m zipfile -e "tests/fuzz/corpus/$target.zip" "$seeds"; done
if [ -n "$unguided" ]; then
  kept=$corpus
  corpus=$build/corpus
  rm -rf "$corpus"
  for target in $targets; do
    mkdir -p "$corpus/$target"
    [ ! -d "$kept/$target" ] || find "$kept/$target" -type f -size -${longest}c | sort | sed -n 1,3000p | xargs -r cp -t "$corpus/$target"
  done
fi

# Stack traces of every allocation cost most of the time; a finding is looked at again with them.
export ASAN_OPTIONS=malloc_context_size=0:detect_stack_use_after_return=0:allocator_may_return_null=0
limit() { case "$1" in deepspeed | dcp) echo $((32 * longest)) ;; *) echo "$longest" ;; esac; }   # folders are larger
fuzz() {
  local log=$build/$1.log
  # shellcheck disable=SC2086
  if "$build/bin/$1_fuzz" $unguided -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len="$(limit "$1")" -print_final_stats=1 \
    -artifact_prefix="$findings/$1-" "$corpus/$1" "$seeds/$1" >"$log" 2>&1; then
    local runs speed
    runs=$(awk '/number_of_executed_units/ { print $2 }' "$log")
    speed=$(awk '/average_exec_per_sec/ { print $2 }' "$log")
    echo "fuzz $1: $runs executions, $speed a second, no finding"
  else
    grep -E '^SUMMARY|ERROR|runtime error|Test unit written' "$log" || tail -n 20 "$log"
    echo "fuzz $1: FINDING, see $log"
    return 1
  fi
}
export -f fuzz limit
export unguided build corpus seeds findings seconds longest

# The files of each reader; its container and pickle files are those of torch_file and pickle.
declare -A readers=(
  [pickle]='containers/pickle(_text|_value)?.cpp' [torch_file]='(containers/(object_tree|tensor_view|torch_file|zip_reader)|formats/torch/(reader|training_file|training_layout)).cpp'
  [safetensors]='(containers/(safetensors_header|sub_byte_types)|formats/safetensors/reader).cpp'
  [npz]='(containers/(inflated_file|zip_reader)|formats/numpy/(array_header|entry_names|reader)).cpp'
  [gguf]='formats/gguf/(header_reader|reader|types).cpp' [manifest]='manifest/.*.cpp'
  [shard]='shard/(base_links|chunked_payload|container|shard_tables|table_checks|tables).cpp'
  [deepspeed]='(containers/(boxes|entry_checksum|entry_verification|joined_source|pieced_source)|formats/deepspeed/(affine_map|cut_rules|expert_.*|flat_groups|frozen_pieces|layout|model_file|module_files|name_pattern|optimizer_file|parameter_table|pickle_fields|pipeline_layers|rank_.*|reader_.*|slot_matcher|stage0|stage_union|tied_states|tensor_cut)).cpp'
  [dcp]='formats/dcp/(client_tree|distributed_tensor|entry_values|flat_parameters|groups|keys|megatron|metadata|raw_names|safetensors_pieces|state_dict|state_dict_source|state_dict_to_catalog|stored_items|zstd_item).cpp')
report() {  # report TARGET: runs every seed once; prints the share of the lines of the reader's files
  local program=$build/bin/$1_fuzz profile=$build/$1
  LLVM_PROFILE_FILE=$profile.raw "$program" -runs=0 -max_len="$(limit "$1")" "$corpus/$1" "$seeds/$1" >"$build/$1.log" 2>&1
  llvm-profdata merge -o "$profile.profdata" "$profile.raw"
  # shellcheck disable=SC2046
  llvm-cov report "$program" -instr-profile="$profile.profdata" $(git ls-files format/src converters/src | grep -E "/src/(${readers[$1]})$") \
    >"$build/$1.txt"
  awk -v target="$1" '$1 == "TOTAL" { printf "coverage %-12s %5d lines, %s ran\n", target, $8, $10 }' "$build/$1.txt"
}
if [ -n "$coverage" ]; then
  for target in $targets; do report "$target"; done
  echo "each file: $build/TARGET.txt"
  exit
fi
# shellcheck disable=SC2086
printf '%s\n' $targets | xargs -P 2 -I{} bash -c 'fuzz {}'
