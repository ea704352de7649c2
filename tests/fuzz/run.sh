#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs each for a while: tests/fuzz/run.sh [SECONDS, default 60] [TARGET...]
# Seeds: the real files of UNISHARD_FIXTURES where they are. A finding is left in build/fuzz/findings/.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-60}
shift || true
targets=${*:-pickle torch_file safetensors manifest deepspeed dcp}
fixtures=${UNISHARD_FIXTURES:-../shared/fixtures}
cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER=clang-16 -DCMAKE_CXX_COMPILER=clang++-16 \
  -DUNISHARD_SANITIZE=address,undefined -DUNISHARD_FUZZ=ON -DUNISHARD_BUILD_TRAINER=OFF -DUNISHARD_BUILD_TESTS=ON >build/fuzz.log 2>&1 || { cat build/fuzz.log; exit 1; }
# shellcheck disable=SC2046
ninja -C build/fuzz $(for target in $targets; do echo "${target}_fuzz"; done)
seeds=build/fuzz/seeds
for target in $targets; do
  mkdir -p "$seeds/$target" "build/fuzz/corpus/$target" build/fuzz/findings
done
if [ -d "$fixtures" ]; then
  find "$fixtures" -size -64k \( -name '*.pt' -o -name '*.bin' -o -name '*.pth' \) -exec cp -t "$seeds/torch_file" {} + 2>/dev/null || true
  find "$fixtures" -size -64k -name '*.safetensors' -exec cp --backup=numbered -t "$seeds/safetensors" {} + 2>/dev/null || true
  find "$fixtures" -size -64k -name '.metadata' -exec cp --backup=numbered -t "$seeds/pickle" {} + 2>/dev/null || true
fi
cp tests/golden/v1/*/manifest.json "$seeds/manifest/" 2>/dev/null || find tests/golden -name manifest.json -exec cp --backup=numbered -t "$seeds/manifest" {} +
for target in $targets; do
  echo "== $target"
  "build/fuzz/tests/fuzz/${target}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/findings/${target}-" "build/fuzz/corpus/$target" "$seeds/$target" 2>&1 | tail -n 12
done
