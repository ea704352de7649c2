#!/usr/bin/env bash
# installed.sh BUILD: installs the build into a fresh folder, builds the example projects against it with their own CMake, and runs
# them on a golden checkpoint. Nothing of this source tree but the examples and the golden files is used.
set -euo pipefail
build=$(realpath "$1")
source=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"
examples="inspect_from_cpp downstream_cmake"
[ ! -d "$work/prefix/include/unishard/trainer" ] || examples+=" own_model"
for example in $examples; do
  cp -r "$source/examples/$example" "$work/$example"
  cmake -S "$work/$example" -B "$work/$example/build" -DCMAKE_PREFIX_PATH="$work/prefix;${CMAKE_PREFIX_PATH:-}" \
    -DCMAKE_BUILD_TYPE=Release >"$work/configure.log" 2>&1 || { cat "$work/configure.log"; exit 1; }
  cmake --build "$work/$example/build"
done
# The README's first C++ example, in a function of its own.
mkdir "$work/readme"
sed -e '/^project/s/inspect_from_cpp/readme/' -e 's/inspect_from_cpp/readme/' "$source/examples/inspect_from_cpp/CMakeLists.txt" >"$work/readme/CMakeLists.txt"
awk '/^    #include/ { on = 1 } /^[^ ]/ { if (on) exit } on { print substr($0, 5) }' "$source/README.md" >"$work/readme/snippet"
{ grep '^#include' "$work/readme/snippet"; echo 'int main() {'; grep -v '^#include' "$work/readme/snippet"; echo '}'; } >"$work/readme/main.cpp"
cmake -S "$work/readme" -B "$work/readme/build" -DCMAKE_PREFIX_PATH="$work/prefix;${CMAKE_PREFIX_PATH:-}" >"$work/configure.log" 2>&1 ||
  { cat "$work/configure.log"; exit 1; }
cmake --build "$work/readme/build"
mkdir "$work/runs"
cp -r "$source/tests/golden/v1" "$work/runs/gpt"
(cd "$work" && readme/build/readme)

golden=$source/tests/golden/v1/global_step7
"$work/inspect_from_cpp/build/inspect_from_cpp" "$golden" | tee "$work/inspect.txt"
grep -q 'elements of float32' "$work/inspect.txt"
grep -q 'the first elements of' "$work/inspect.txt"
"$work/downstream_cmake/build/to_dcp" "$golden" "$work/dcp"
"$work/prefix/bin/unishard" diff "$golden" "$work/dcp"
if [ -x "$work/downstream_cmake/build/train_linear" ]; then
  "$work/downstream_cmake/build/train_linear" "$work/run"
  "$work/prefix/bin/unishard" verify --deep "$work/run"
fi
if [ -x "$work/own_model/build/own_model" ]; then
  config() { echo '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": '"$1"'},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}' >"$work/ds.json"; }
  own_model() { "$work/prefix/bin/unishard" launch --nproc-per-node "$1" -- "$work/own_model/build/own_model" "$work/ds.json" "$work/own"; }
  config 3
  own_model 2 | tee "$work/own.txt"
  config 1
  own_model 1 | tee -a "$work/own.txt"
  awk '/loss/ { if (!first) first = $NF; last = $NF; step = $(NF - 2) } END { exit !(step == 100 && last < first / 2) }' "$work/own.txt"
  "$work/prefix/bin/unishard" verify --deep "$work/own"
fi
