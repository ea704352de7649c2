#!/usr/bin/env bash
# clang-tidy on the C++ sources that changed since a commit: tests/tidy.sh [BASE, default HEAD~1] [PRESET, default release]
# The preset must be configured. Nothing changed is a pass. Files that use a precompiled header are left out: clang cannot read GCC's.
set -euo pipefail
cd "$(dirname "$0")/.."
base=${1:-HEAD~1} preset=${2:-release}
git rev-parse --quiet --verify "$base" >/dev/null || { echo "clang-tidy: no commit $base"; exit 0; }
files=$(git diff --name-only --diff-filter=d "$base" -- 'format/*.cpp' 'converters/*.cpp' 'tools/lib/*.cpp' 'tools/render/*.cpp')
[ -n "$files" ] || { echo "clang-tidy: no changed sources since $base"; exit 0; }
echo "clang-tidy: $(echo "$files" | wc -l) files changed since $base"
# shellcheck disable=SC2086
printf '%s\n' $files | xargs -P 2 -n 1 clang-tidy-16 -p "build/$preset" --quiet --extra-arg=-Wno-unknown-warning-option
