#!/usr/bin/env bash
# clang-tidy on the C++ sources that changed since a commit: tests/tidy.sh [BASE, default HEAD~1; "all" for every source]
# Configures build/tidy without precompiled headers, because clang cannot read GCC's. Nothing changed is a pass.
set -euo pipefail
cd "$(dirname "$0")/.."
base=${1:-HEAD~1}
sources=('format/*.cpp' 'converters/*.cpp' 'tools/*.cpp')
if [ "$base" = all ]; then
  files=$(git ls-files "${sources[@]}")
else
  git rev-parse --quiet --verify "$base" >/dev/null || { echo "clang-tidy: no commit $base"; exit 0; }
  files=$(git diff --name-only --diff-filter=d "$base" -- "${sources[@]}")
fi
[ -n "$files" ] || { echo "clang-tidy: no changed sources since $base"; exit 0; }
count=$(echo "$files" | wc -l)
if [ "$base" != all ] && [ "$count" -gt 16 ]; then
  # Half a minute of processor time each: a change of this size is checked by hand.
  echo "clang-tidy: $count files changed since $base are too many for every run: tests/tidy.sh all"
  exit 0
fi
cmake -S . -B build/tidy -G Ninja -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DUNISHARD_BUILD_TRAINER=OFF \
  -DUNISHARD_BUILD_TESTS=OFF >/dev/null
echo "clang-tidy: $count files, $([ "$base" = all ] && echo all || echo "changed since $base")"
# shellcheck disable=SC2086
printf '%s\n' $files | xargs -P 2 -n 1 clang-tidy-16 -p build/tidy --quiet --extra-arg=-Wno-unknown-warning-option
