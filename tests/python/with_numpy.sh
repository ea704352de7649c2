#!/bin/sh
# with_numpy.sh SCRIPT BIN: runs SCRIPT with a Python that has numpy, on the package of this source tree and the library in BIN.
here=$(cd "$(dirname "$0")" && pwd)
export UNISHARD_LIBRARY_DIR="$2" PYTHONPATH="$here/../../tools/python" PYTHONDONTWRITEBYTECODE=1
for python in python3 /usr/bin/python3; do
  "$python" -c 'import numpy, sys; assert sys.version_info >= (3, 9)' 2>/dev/null && exec "$python" "$1"
done
echo "SKIP: no Python 3.9 with numpy (Debian: python3-numpy)"
exit 77
