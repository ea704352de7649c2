#!/usr/bin/env bash
# wheel_test.sh [WHEEL]: builds the wheel for this machine, or takes WHEEL, and checks what its users rely on: size, the libraries and
# symbol versions that it needs, no path of the build inside; then it is installed in a fresh environment, where the package's tests and
# the examples of its README run (with the torch and h5py of build/peers too, if they are there), and removed without a trace.
# Exit 77: it cannot run here, for the reason that it prints.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repository=$(realpath "$here/../..")
largest=$((15 << 20))
skip() { echo "wheel: skipped: $*"; exit 77; }
fail() { echo "wheel: $*" >&2; exit 1; }
python3 -c 'import ensurepip, venv' 2>/dev/null || skip "python3-venv is not installed"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1

if [ $# -gt 0 ]; then
  wheel=$(realpath "$1")
else
  begin=$SECONDS
  "$repository/tools/python/build_wheel.sh" "$work/wheel"
  wheel=$(echo "$work"/wheel/*.whl)
  echo "wheel: built in $((SECONDS - begin)) s"
fi

# What it carries.
[[ $wheel =~ -py3-none-.*manylinux_2_([0-9]+)_(x86_64|aarch64)\.whl$ ]] || fail "$wheel has no tag of manylinux"
glibc=2.${BASH_REMATCH[1]} arch=${BASH_REMATCH[2]}
[ "$(stat -c %s "$wheel")" -le $largest ] || fail "$(stat -c %s "$wheel") bytes are more than $largest"
python3 -m zipfile -e "$wheel" "$work/files"
for file in unishard/bin/unishard unishard/libunishard_c.so; do
  at=$work/files/$file
  foreign=$(readelf --dynamic "$at" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -vE '^(lib(c|m|pthread|dl|rt)\.so\.[0-9]+|ld-linux-(x86-64|aarch64)\.so\.[0-9]+)$' || true)
  [ -z "$foreign" ] || fail "$file needs $foreign"
  newest=$(readelf --version-info "$at" | grep -o 'GLIBC_[0-9.]*' | cut -d_ -f2 | sort -uV | tail -n 1)
  [ "$(printf '%s\n' "$newest" "$glibc" | sort -V | tail -n 1)" = "$glibc" ] || fail "$file needs glibc $newest, and its tag promises $glibc"
  [ "$(readelf --sections "$at" | grep -cE '\.(debug_|symtab)')" = 0 ] || fail "$file is not stripped"
  ! grep -aqF -e "$repository" -e "$HOME/" "$at" || fail "$file names a folder of the machine that built it"
  echo "wheel: $file: $(stat -c %s "$at") bytes, glibc $newest"
done
exported=$(readelf --dyn-syms --wide "$work/files/unishard/libunishard_c.so" | awk '$7 != "UND" && $5 ~ /GLOBAL|WEAK/ {print $8}' | grep -v '^unishard_' || true)
[ -z "$exported" ] || fail "the library exports $exported"

# Another architecture: the program alone, in qemu, with the C library that the build unpacked.
if [ "$arch" != "$(uname -m)" ]; then
  system=$repository/build/wheel/$arch/system
  { [ -d "$system" ] && command -v "qemu-$arch" >/dev/null; } || skip "no qemu-$arch, or no $system: only looked at"
  emulated() { "qemu-$arch" -L "$system" "$work/files/unishard/bin/unishard" "$@"; }
  chmod +x "$work/files/unishard/bin/unishard"
  emulated --version
  for made in v1 v1-zstd v1-shared; do
    emulated verify --deep "$repository/tests/golden/$made"
    emulated reshard -q "$repository/tests/golden/$made" "$work/$made" -w 3 --stage 3
    emulated diff "$repository/tests/golden/$made" "$work/$made" >/dev/null
    emulated convert -q "$work/$made" "$work/$made.h5" --to hdf5
    emulated diff "$work/$made" "$work/$made.h5" >/dev/null
  done
  exit 0
fi

# A fresh environment.
python3 -m venv "$work/venv"
list() { (cd "$work/venv" && find . -not -name '*.pyc' -not -name __pycache__ | sort); }
"$work/venv/bin/pip" install -q numpy >"$work/pip.log" 2>&1 || skip "numpy cannot be installed: $(tail -n 1 "$work/pip.log")"
list >"$work/before"
begin=$SECONDS
env PATH="$work/venv/bin" "$work/venv/bin/pip" install -q --no-index "$wheel"   # no compiler in reach
echo "wheel: installed in $((SECONDS - begin)) s"
cd "$work"
for command in unishard "python -m unishard" zero_to_fp32; do
  # shellcheck disable=SC2086
  PATH=$work/venv/bin:$PATH $command --help >/dev/null || fail "$command does not run"
done
"$work/venv/bin/python" "$here/package_test.py"
peers=$(echo "$repository"/build/peers/lib/python3*/site-packages)
if [ -d "$peers/torch" ] && PYTHONPATH=$peers "$work/venv/bin/python" -c 'import torch, h5py' 2>/dev/null; then
  PYTHONPATH=$peers "$work/venv/bin/python" "$here/package_test.py"
else
  echo "wheel: build/peers has no torch for this Python: not run with torch and h5py"
fi
"$work/venv/bin/pip" uninstall -q -y unishard
list | diff "$work/before" - || fail "something is left after pip uninstall"
