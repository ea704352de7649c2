#!/bin/sh
# with_h5py.sh SCRIPT ARGUMENT WORD: runs SCRIPT with a Python that has h5py; the first word that it prints must be WORD.
for python in python3 /usr/bin/python3; do
  if "$python" -c 'import h5py' 2>/dev/null; then
    printed=$("$python" "$1" "$2") || exit 1
    echo "$printed"
    case "$printed" in "$3 "*) exit 0 ;; esac
    echo "expected $3"
    exit 1
  fi
done
echo "SKIP: no Python with h5py (Debian: python3-h5py)"
exit 77
