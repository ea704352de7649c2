#!/usr/bin/env bash
# Builds a wheel for systems with glibc 2.28 or newer (RHEL 8, Debian 10, Ubuntu 18.10): tools/python/build_wheel.sh
# The compiler is clang of the PyPI package ziglang, which brings the headers and stubs of older glibc versions. HDF5, zstd, zlib,
# ISA-L and fmt are compiled from Debian's sources with it and linked statically; CLI11 and nlohmann-json are headers. Needs Debian 12
# with dpkg-dev, nasm, ninja-build and python3-venv. Everything lies in build/wheel; what is there already is not built again.
set -euo pipefail
cd "$(dirname "$0")/../.."
glibc=2.28
root=$PWD/build/wheel
prefix=$root/prefix
mkdir -p "$root/sources" "$root/bin" "$prefix"

say() { printf '\n== %s\n' "$*"; }

tools() {
  [ -x "$root/tools/bin/auditwheel" ] || { python3 -m venv "$root/tools" && "$root/tools/bin/pip" install -q ziglang scikit-build-core auditwheel build; }
  local name
  for name in cc c++ ar ranlib; do
    { echo '#!/bin/sh'
      case $name in
        cc | c++) echo "exec \"$root/tools/bin/python\" -m ziglang $name -target x86_64-linux-gnu.$glibc -mcpu=x86_64_v2 \"\$@\"" ;;
        *) echo "exec \"$root/tools/bin/python\" -m ziglang $name \"\$@\"" ;;
      esac
    } >"$root/bin/$name"
    chmod +x "$root/bin/$name"
  done
}

# Debian's sources, through a list of their own: the system's lists stay as they are.
sources() {
  local apt=$root/apt
  mkdir -p "$apt/lists/partial" "$apt/parts"
  cat /etc/apt/sources.list.d/*.sources 2>/dev/null | sed 's/^Types: *deb$/Types: deb-src/' >"$apt/parts/source.sources"
  sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$apt/parts/source.list" 2>/dev/null || true
  local options=(-q -o "Dir::Etc::sourcelist=/dev/null" -o "Dir::Etc::sourceparts=$apt/parts" -o "Dir::State::lists=$apt/lists")
  apt-get "${options[@]}" update >/dev/null
  local package
  for package in zlib libzstd libisal fmtlib hdf5 nlohmann-json3 cli11; do
    [ -n "$(find "$root/sources" -maxdepth 1 -type d -name "$package-[0-9]*")" ] || (cd "$root/sources" && apt-get "${options[@]}" source "$package" >/dev/null)
  done
}
source_of() { find "$root/sources" -maxdepth 1 -type d -name "$1-[0-9]*" | head -1; }

# with_cmake NAME FOLDER OPTIONS...: builds and installs static libraries.
with_cmake() {
  local name=$1 folder=$2
  shift 2
  [ ! -e "$prefix/$name.done" ] || return 0
  say "$name"
  cmake -S "$folder" -B "$root/build/$name" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF -DCMAKE_PREFIX_PATH="$prefix" "$@" "${compilers[@]}" >"$root/$name.log"
  cmake --build "$root/build/$name" >>"$root/$name.log"
  cmake --install "$root/build/$name" >>"$root/$name.log"
  touch "$prefix/$name.done"
}

dependencies() {
  compilers=(-DCMAKE_C_COMPILER="$root/bin/cc" -DCMAKE_CXX_COMPILER="$root/bin/c++" -DCMAKE_AR="$root/bin/ar" -DCMAKE_RANLIB="$root/bin/ranlib"
    "-DCMAKE_C_FLAGS=-ffile-prefix-map=$root=." "-DCMAKE_CXX_FLAGS=-ffile-prefix-map=$root=.")
  if [ ! -e "$prefix/zlib.done" ]; then
    say zlib
    (cd "$(source_of zlib)" && CC="$root/bin/cc" AR="$root/bin/ar" CFLAGS="-O3 -fPIC" ./configure --static --prefix="$prefix" && make install) >"$root/zlib.log" 2>&1
    touch "$prefix/zlib.done"
  fi
  with_cmake json "$(source_of nlohmann-json3)" -DJSON_BuildTests=OFF
  with_cmake cli11 "$(source_of cli11)" -DCLI11_BUILD_TESTS=OFF -DCLI11_BUILD_EXAMPLES=OFF -DCLI11_BUILD_DOCS=OFF
  with_cmake zstd "$(source_of libzstd)/build/cmake" -DZSTD_BUILD_PROGRAMS=OFF -DZSTD_BUILD_SHARED=OFF
  with_cmake fmt "$(source_of fmtlib)" -DFMT_TEST=OFF -DFMT_DOC=OFF
  if [ ! -e "$prefix/hdf5.done" ]; then
    say hdf5
    mkdir -p "$root/build/hdf5"
    (cd "$root/build/hdf5" && "$(source_of hdf5)/configure" CC="$root/bin/cc" AR="$root/bin/ar" RANLIB="$root/bin/ranlib" CFLAGS="-O3 -fPIC -ffile-prefix-map=$root=." \
      --prefix="$prefix" --disable-shared --enable-static --disable-hl --disable-fortran --disable-cxx --disable-tests --disable-tools \
      --enable-build-mode=production --with-zlib="$prefix" --without-szlib && make -j2 && make install) >"$root/hdf5.log" 2>&1
    touch "$prefix/hdf5.done"
  fi
  if [ ! -e "$prefix/isal.done" ]; then
    say isal
    local folder
    folder=$(source_of libisal)
    make -C "$folder" -f Makefile.unx CC="$root/bin/cc" AR="$root/bin/ar" CFLAGS_="-fPIC" lib >"$root/isal.log" 2>&1
    make -C "$folder" -f Makefile.unx CC="$root/bin/cc" AR="$root/bin/ar" prefix="$prefix" install >>"$root/isal.log" 2>&1
    touch "$prefix/isal.done"
  fi
}

say "tools and sources"
tools
sources
dependencies
