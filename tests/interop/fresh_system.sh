#!/usr/bin/env bash
# fresh_system.sh BUILD: makes the .deb, makes a minimal system of this machine's release in a folder (debootstrap, with the mirrors of
# apt's sources), installs the .deb there as a user does, runs the program, and removes it. About a minute and 400 MB in /var/tmp.
# Exit 77: it cannot run here, for the reason that it prints.
# shellcheck disable=SC1091,SC2016
set -euo pipefail
skip() { echo "fresh system: skipped: $*"; exit 77; }
for tool in debootstrap dpkg-shlibdeps apt-get unshare; do
  command -v "$tool" >/dev/null || skip "$tool is not installed"
done
[ "$(id -u)" = 0 ] || skip "making a system in a folder needs root"
build=$(realpath "$1")
golden=$(realpath "$(dirname "$0")/../golden")
work=$(mktemp -d /var/tmp/unishard-fresh-system.XXXXXX)   # not $TMPDIR: device files do not work on every file system
trap 'rm -rf --one-file-system "$work"' EXIT
cd "$work"
cpack -G DEB --config "$build/CPackConfig.cmake" >pack.log 2>&1 || { cat pack.log; exit 1; }
package=$(echo unishard_*.deb)

# The distribution's own archives among apt's sources: "address suite component", the release's first.
. /etc/os-release
apt-get indextargets --format '$(ORIGIN) $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' \
  | awk -v id="$ID" 'tolower($1) == id {print $2, $3, $4}' | sort -u >archives
mirror=$(awk -v suite="$VERSION_CODENAME" '$2 == suite {print $1; exit}' archives)
components=$(awk -v suite="$VERSION_CODENAME" '$2 == suite {print $3}' archives | paste -sd,)
[ -n "$mirror" ] || skip "apt's sources have no archive of $ID $VERSION_CODENAME"
http_proxy=${http_proxy:-$(apt-config dump --format '%v' Acquire::http::Proxy)}
export http_proxy
started=$SECONDS
debootstrap --variant=minbase --components="$components" "$VERSION_CODENAME" root "$mirror" >debootstrap.log 2>&1 \
  || skip "no minimal system from $mirror: $(tail -n 1 debootstrap.log)"
made=$SECONDS
sed 's/^/deb /' archives >root/etc/apt/sources.list
printf '#!/bin/sh\nexit 101\n' >root/usr/sbin/policy-rc.d   # installing starts no service
chmod +x root/usr/sbin/policy-rc.d
cp -r "$golden" "$package" root/tmp/

# `inside COMMAND` runs a shell command in the new system, with a /proc of its own that goes away with it.
inside() {
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive http_proxy="$http_proxy" \
    unshare --mount --pid --fork --mount-proc="$work/root/proc" chroot "$work/root" /bin/sh -euc "cd /tmp; $1"
}
inside 'apt-get -q update' >install.log 2>&1 || skip "no package lists from $mirror: $(tail -n 1 install.log)"
packages() { inside 'dpkg-query --show --showformat "\${Package} \${Installed-Size}\n"' | sort; }
packages >before
updated=$SECONDS
inside "apt-get -q install --yes --no-install-recommends ./$package" >install.log 2>&1 || { cat install.log; exit 1; }
installed=$SECONDS
packages >after
comm -13 before after >added

inside 'dpkg-query --listfiles unishard' >files
inside 'unishard --version
  unishard env >/dev/null
  for made in v1 v1-zstd v1-shared v1-boxes; do unishard verify --deep golden/$made; done
  zero_to_fp32 golden/v1 model.safetensors -q
  unishard inspect model.safetensors >/dev/null
  unishard convert golden/v1-zstd model.h5 --to hdf5 -q
  unishard diff golden/v1-zstd model.h5 >/dev/null
  grep -q "^\.SS verify" /usr/share/man/man1/unishard.1'
inside 'apt-get -q purge --yes unishard && apt-get -q autoremove --purge --yes' >remove.log 2>&1 || { cat remove.log; exit 1; }
packages >left
diff before left || { echo "fresh system: other packages than before the installation"; exit 1; }
left_over=$(while read -r file; do [ -d "root$file" ] || [ ! -e "root$file" ] || echo "$file"; done <files)
[ -z "$left_over" ] || { echo "fresh system: files that stay after removal: $left_over"; exit 1; }

awk '{size += $2} END {printf "fresh system: %d packages, %.1f MB installed: ", NR, size / 1000}' added
cut -d' ' -f1 added | paste -sd' '
dpkg-deb --field "$package" Depends
echo "fresh system: $PRETTY_NAME; .deb of $(du -k --apparent-size "$package" | cut -f1) kB; base system $((made - started)) s," \
  "installation $((installed - updated)) s, checks and removal $((SECONDS - installed)) s"
