#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs each for a while, two at a time:
#   tests/fuzz/run.sh [--fast | --unguided] [SECONDS, default 60] [TARGET...]
# AddressSanitizer and UndefinedBehaviorSanitizer watch; --fast leaves them out for many more executions a second. --unguided
# also leaves out the instrumentation that guides libFuzzer and mutates small inputs that guided runs have kept: some five
# times the executions, and nothing is added to the corpus. Seeds: the real files of UNISHARD_FIXTURES where they are, and what
# earlier runs found worth keeping (build/fuzz/corpus). A finding is left in build/fuzz/findings/ and makes the status 1.
set -euo pipefail
cd "$(dirname "$0")/../.."
sanitize=address,undefined
build=build/fuzz
flags="-O1 -gline-tables-only"   # half the time to build
longest=16384   # bytes of an input: small ones find as much, many times faster
unguided=       # options of libFuzzer
case "${1:-}" in
  --fast) sanitize=; build=build/fuzz-fast; flags=-O2; shift ;;
  --unguided)
    sanitize= build=build/fuzz-unguided longest=600 unguided="-keep_seed=1 -entropic=0 -reload=0"
    flags="-O2 -fno-sanitize-coverage=trace-cmp -fsanitize-coverage-allowlist=$PWD/$build/instrumented.txt"
    mkdir -p "$build"
    printf 'src:*\nfun:LLVMFuzzerTestOneInput\n' >"$build/instrumented.txt"
    shift ;;
esac
seconds=${1:-60}
shift || true
targets=${*:-pickle torch_file safetensors manifest shard deepspeed dcp}
fixtures=${UNISHARD_FIXTURES:-../shared/fixtures}

mkdir -p "$build"
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="$flags" -DCMAKE_C_COMPILER=clang-16 -DCMAKE_CXX_COMPILER=clang++-16 \
  -DUNISHARD_SANITIZE="$sanitize" -DUNISHARD_FUZZ=ON -DUNISHARD_BUILD_TRAINER=OFF -DUNISHARD_BUILD_TESTS=ON \
  -DUNISHARD_WARNINGS_AS_ERRORS=ON -DCMAKE_UNITY_BUILD=ON >"$build/configure.log" 2>&1 || { cat "$build/configure.log"; exit 1; }
# shellcheck disable=SC2046
ninja -C "$build" $(for target in $targets; do echo "${target}_fuzz"; done)

seeds=$build/seeds corpus=build/fuzz/corpus findings=build/fuzz/findings
mkdir -p "$findings"
for target in $targets; do mkdir -p "$seeds/$target" "$corpus/$target"; done
seed() {  # seed TARGET FOLDER FIND-EXPRESSION...
  local target=$1 folder=$2; shift 2
  [ ! -d "$folder" ] || find "$folder" -size -${longest}c "$@" -exec cp -f --backup=numbered -t "$seeds/$target/" {} + 2>/dev/null || true
}
rm -rf "${seeds:?}"/*/*
seed torch_file "$fixtures" \( -name '*.pt' -o -name '*.bin' -o -name '*.pth' \)
seed safetensors "$fixtures" -name '*.safetensors'
seed pickle "$fixtures" -name '.metadata'
seed manifest tests/golden -name manifest.json
if [ -n "$unguided" ]; then
  kept=$corpus
  corpus=$build/corpus
  rm -rf "$corpus"
  for target in $targets; do
    mkdir -p "$corpus/$target"
    [ ! -d "$kept/$target" ] || find "$kept/$target" -type f -size -${longest}c | sort | head -n 3000 | xargs -r cp -t "$corpus/$target"
  done
fi

# Stack traces of every allocation cost most of the time; a finding is looked at again with them.
export ASAN_OPTIONS=malloc_context_size=0:detect_stack_use_after_return=0:allocator_may_return_null=0
fuzz() {
  local log=$build/$1.log
  # shellcheck disable=SC2086
  if "$build/bin/$1_fuzz" $unguided -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=$longest -print_final_stats=1 \
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
export -f fuzz
export unguided build corpus seeds findings seconds longest
# shellcheck disable=SC2086
printf '%s\n' $targets | xargs -P 2 -I{} bash -c 'fuzz {}'
