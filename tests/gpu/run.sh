#!/usr/bin/env bash
# run.sh [--json FILE] [--parts NAME,...] [--device cuda|cpu]: what only a machine with a GPU can show, in at most eight minutes, as a table
# (measure.py lists the parts). In the archive of pack.sh it uses what lies beside it and the PyTorch that `python3` has; in the source tree
# it builds first (build.sh).
# Exit 1: a part failed. Exit 77: it cannot run here, for the reason that it prints.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
case " $* " in
  *" --device cpu "*) ;;
  *) nvidia-smi -L 2>/dev/null || { echo "gpu: skipped: no device"; exit 77; } ;;
esac
if [ -d "$here/bin" ]; then
  exec "$python" "$here/measure.py" --bin "$here/bin" --libraries "$here/lib" "$@"
fi
cd "$here/../.."
build=${UNISHARD_GPU_BUILD:-build/torch2}
[ -n "${UNISHARD_GPU_BUILD:-}" ] || tests/gpu/build.sh "$build"
cmake --build "$build" --target trainer_engine_test unishard >/dev/null
exec "$python" "$here/measure.py" --bin "$build/bin" --bin "$build/tests" "$@"
