#!/usr/bin/env bash
# Makes the source package from the last commit: tools/python/build_sdist.sh [OUTPUT]. `pip install` compiles it with the libraries of the
# system, as it does a checkout. Needs git and python3-venv.
set -euo pipefail
repository=$(cd "$(dirname "$0")/../.." && pwd)
output=$(realpath -m "${1:-$repository/build/wheel}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tree"
git -C "$repository" archive HEAD CMakeLists.txt LICENSE format converters tools | tar --extract --directory "$work/tree"
mv "$work"/tree/tools/python/{pyproject.toml,README.md} "$work/tree"   # where a package has them; see its overrides
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q build 'scikit-build-core>=0.10'
"$work/venv/bin/python" -m build --sdist --no-isolation --outdir "$output" "$work/tree"
