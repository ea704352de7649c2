#!/usr/bin/env bash
# package.sh BUILD: makes the .deb, unpacks it into an empty folder, and runs the program from there. Exit 77: no dpkg here.
set -euo pipefail
command -v dpkg-shlibdeps >/dev/null && command -v dpkg-deb >/dev/null || { echo "dpkg-dev is not installed"; exit 77; }
build=$(realpath "$1")
golden=$(realpath "$(dirname "$0")/../golden/v1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cpack -G DEB --config "$build/CPackConfig.cmake" >pack.log 2>&1 || { cat pack.log; exit 1; }
package=$(echo unishard_*.deb)
dpkg-deb --field "$package" Depends | tee depends.txt
grep -q libhdf5 depends.txt
dpkg-deb -x "$package" root
root/usr/bin/unishard verify "$golden" --deep
root/usr/bin/zero_to_fp32 "$golden" model.safetensors -q
root/usr/bin/unishard inspect model.safetensors >/dev/null
