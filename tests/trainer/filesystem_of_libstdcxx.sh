#!/usr/bin/env bash
# Some builds of LibTorch export std::filesystem functions of another compiler, which crash in our programs. The dynamic linker takes a
# function from the first library that has it, so programs name libstdc++ before LibTorch.
#   tests/trainer/filesystem_of_libstdcxx.sh PROGRAM...
set -euo pipefail
status=0
for program; do
  first=$(readelf -d "$program" | sed -n 's/.*(NEEDED).*\[\(lib\(stdc++\|torch\|c10\)[^]]*\)\]/\1/p' | head -1)
  case $first in
    libstdc++*) ;;
    *) echo "$program: ${first:-nothing} comes before libstdc++"; status=1 ;;
  esac
done
exit $status
