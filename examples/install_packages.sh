#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages that UniShard builds with; `tests` adds those of the test programs, and `peers`
# behind it Python's venv, Open MPI, OpenSSH, Slurm, debootstrap, nasm and Chromium. Source it or run it.
packages="g++ cmake ninja-build ccache pkg-config git ca-certificates procps libhdf5-dev libisal-dev libzstd-dev zlib1g-dev libfmt-dev nlohmann-json3-dev libcli11-dev
          libtorch-dev libgloo-dev libopenblas0-openmp"
[ "${1:-}" != tests ] || packages="$packages libgtest-dev libgmock-dev librapidcheck-dev python3-h5py python3-fusepy hdf5-tools clang-16 libclang-rt-16-dev clang-format-16 clang-tidy-16"
[ "${2:-}" != peers ] || packages="$packages python3-venv openmpi-bin openssh-client openssh-server iproute2 slurmctld slurmd slurm-client munge dpkg-dev debootstrap nasm"
missing=
for package in $packages; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
run=
[ "$(id -u)" = 0 ] || run=sudo
if [ -n "$missing" ]; then
  command -v apt-get >/dev/null || { echo "install these packages first:$missing" >&2; exit 3; }
  echo "installing:$missing"
  $run apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $run apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
# The browser that looks at the report; its test is skipped without. Ubuntu's package is a snap, which does not run everywhere.
if [ "${2:-}" = peers ] && ! command -v chromium >/dev/null && grep -q '^ID=debian' /etc/os-release; then
  echo "installing: chromium"
  { timeout 300 $run apt-get update -qq && DEBIAN_FRONTEND=noninteractive timeout 300 $run apt-get install -y -qq --no-install-recommends chromium >/dev/null; } ||
    echo "chromium was not installed: the test of the report in a browser is skipped"
fi
