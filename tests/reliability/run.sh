#!/usr/bin/env bash
# Runs all parts of the reliability record and prints a table: part, count, findings, seconds, seed.
#   tests/reliability/run.sh [--long] [--seed N] [--build FOLDER, default build/minimal]
# The short form takes some two minutes on two cores, the long form hours. The folder must be configured with tests; what is
# needed is built. The trainer is killed too where the folder has train_gpt. Status 1: a finding.
set -euo pipefail
cd "$(dirname "$0")/../.."
long=
seed=1
build=build/minimal
while [ $# -gt 0 ]; do
  case "$1" in
    --long) long=--long; shift ;;
    --seed) seed=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    *) sed -n '2,5p' "$0"; exit 2 ;;
  esac
done
programs="reliability_crash reliability_damage reliability_faults unishard"
if ninja -C "$build" -t query train_gpt >/dev/null 2>&1; then programs+=" train_gpt"; fi
# shellcheck disable=SC2086
cmake --build "$build" -j "$(nproc)" --target $programs >"$build/reliability-build.log" || { cat "$build/reliability-build.log"; exit 1; }

[ -n "${TMPDIR:-}" ] || [ ! -w /dev/shm ] || export TMPDIR=/dev/shm   # kills and faults need no real disk
log=$build/reliability.log
: >"$log"
status=0
part() {
  local ended=0
  "$@" $long --seed "$seed" >"$log.part" 2>&1 || ended=$?
  tee -a "$log" <"$log.part" | grep '^FINDING' || true
  [ $ended = 0 ] || [ $ended = 77 ] || status=1   # 77: skipped, and the log says why
}
part "$build/tests/reliability_crash"
part "$build/tests/reliability_crash" teeth
part "$build/tests/reliability_damage"
part "$build/tests/reliability_faults"
part python3 tests/reliability/kills.py --bin "$build/bin"
part python3 tests/reliability/injected.py --bin "$build/bin"
part python3 tests/reliability/ext4.py --bin "$build/bin"
part python3 tests/reliability/restarts.py --bin "$build/bin"
part python3 tests/reliability/foreign_damage.py --bin "$build/bin"
rm -f "$log.part"
grep -E '^[^|]+: all +\||train_gpt|two writers|^ext4|^foreign' "$log"
echo "every row is in $log"
exit $status
