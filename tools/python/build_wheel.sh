#!/usr/bin/env bash
# Builds the wheel that runs on systems with glibc 2.17 or newer:
#   tools/python/build_wheel.sh [--arch x86_64|aarch64] [--jobs N] [--work FOLDER] [OUTPUT]
# The wheel is left in OUTPUT (build/wheel). Libraries are compiled from the distribution's source packages and linked statically, by
# the clang of the PyPI package ziglang, which brings libc++ and the symbols of older glibc versions. Everything else lies in FOLDER
# (build/wheel): sources, tools, libraries for each architecture; what is there already is not made again.
# Needs Debian or Ubuntu with cmake, ninja-build, pkg-config, dpkg-dev, python3-venv, and nasm for x86_64, or qemu-user for aarch64.
set -euo pipefail
repository=$(cd "$(dirname "$0")/../.." && pwd)
glibc=2.17   # manylinux2014 is its older name, which the pip of Python 3.9.0 knows
arch=x86_64 jobs=$(nproc) work=$repository/build/wheel
while [ $# -gt 0 ]; do
  case $1 in
    --arch) arch=$2; shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    --work) work=$2; shift 2 ;;
    -*) sed -n '2,7p' "$0"; exit 2 ;;
    *) break ;;
  esac
done
case $arch in x86_64 | aarch64) ;; *) echo "build_wheel.sh: no architecture $arch: x86_64 or aarch64" >&2; exit 2 ;; esac
mkdir -p "$work"
work=$(realpath "$work")
exec 9>"$work/lock"   # another run in the same folder goes first
flock 9
output=$(realpath -m "${1:-$repository/build/wheel}")
sources=$work/sources
own=$work/$arch                  # what belongs to one architecture
prefix=$own/prefix
python=$work/tools/bin/python
toolchain=$own/toolchain.cmake
mkdir -p "$sources" "$own/bin" "$own/build" "$prefix"

# once FOLDER NAME COMMAND...: runs COMMAND unless it has succeeded before, as FOLDER/NAME.done says. Its output is in a log, whose end a
# failure shows.
once() {
  local done=$1/$2.done log=$1/$2.log status=0
  [ ! -e "$done" ] || return 0
  echo "$arch: $2"
  shift 2
  set +e
  (set -e; "$@") >"$log" 2>&1   # a subshell in a condition would not stop at its first failure
  status=$?
  set -e
  [ $status = 0 ] || { tail -n 30 "$log" >&2; echo "build_wheel.sh: failed: $log" >&2; exit 1; }
  touch "$done"
}

install_tools() {
  [ -x "$python" ] || python3 -m venv "$work/tools"
  "$python" -m pip install -q 'ziglang>=0.14' 'scikit-build-core>=0.10' build wheel
}

# Compilers with the target built in, and the toolchain file for CMake: it finds libraries nowhere but in the prefix.
write_toolchain() {
  local name
  for name in cc c++ ar ranlib; do
    local target=
    case $name in cc | c++) target="-target $arch-linux-gnu.$glibc -fno-sanitize=undefined -ffile-prefix-map=$work=. -ffile-prefix-map=$repository=." ;; esac
    printf '#!/bin/sh\nexec "%s" -m ziglang %s %s "$@"\n' "$python" "$name" "$target" >"$own/bin/$name"
    chmod +x "$own/bin/$name"
  done
  {
    cat <<END
set(CMAKE_C_COMPILER "$own/bin/cc")
set(CMAKE_CXX_COMPILER "$own/bin/c++")
set(CMAKE_AR "$own/bin/ar")
set(CMAKE_RANLIB "$own/bin/ranlib")
set(CMAKE_FIND_ROOT_PATH "$prefix")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
END
    if [ "$arch" != "$(uname -m)" ]; then
      cat <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $arch)
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-$arch;-L;$own/system")
END
    fi
  } >"$toolchain"
}

# apt-get with lists of its own in the folder: the archives of this distribution among the system's sources.
apt() {
  apt-get -q -o Dir::Etc::sourcelist="$work/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$work/apt/lists" \
    -o APT::Architectures::=amd64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root "$@"
}
# shellcheck disable=SC2016
read_lists() {
  mkdir -p "$work/apt/lists/partial"
  local id
  id=$(. /etc/os-release && echo "$ID")
  apt-get indextargets --format '$(ORIGIN) $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk -v id="$id" 'tolower($1) == id && !seen[$0]++ {print "deb-src", $2, $3, $4; print "deb [arch=arm64]", $2, $3, $4}' >"$work/apt/sources.list"
  apt update
}
packages="zlib libzstd libisal fmtlib hdf5 nlohmann-json3 cli11"
fetch_sources() {
  read_lists
  cd "$sources"
  # shellcheck disable=SC2086
  apt source $packages && return
  # A mirror may have the packages of a security update and not its sources.
  echo "build_wheel.sh: taking the sources of the release, without its security updates"
  sed -i '/^deb-src .*-security /d' "$work/apt/sources.list"
  apt update
  # shellcheck disable=SC2086
  apt source $packages
}
source_of() { find "$sources" -maxdepth 1 -type d -name "$1-[0-9]*" | head -n 1; }

# The C library of the other architecture, with which qemu runs what the build runs.
unpack_system() {
  read_lists
  mkdir -p "$own/debs"
  cd "$own/debs"
  apt download libc6:arm64 libgcc-s1:arm64
  for package in *.deb; do dpkg-deb --extract "$package" "$own/system"; done
}

with_cmake() {
  local name=$1 folder=$2
  shift 2
  mkdir -p "$own/build/$name"
  cd "$own/build/$name"   # HDF5 looks here for what its configuration's programs wrote
  cmake -S "$folder" -B . -G Ninja -DCMAKE_TOOLCHAIN_FILE="$toolchain" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
    -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF "$@"
  cmake --build . -j "$jobs"
  cmake --install .
}

build_zlib() {
  cp -r "$(source_of zlib)" "$own/build/zlib"
  cd "$own/build/zlib"
  CC=$own/bin/cc AR=$own/bin/ar RANLIB=$own/bin/ranlib CFLAGS="-O3 -fPIC" ./configure --static --prefix="$prefix"
  make -j "$jobs" libz.a
  make install
}

# The checksums alone. Each function picks its instructions when it is first called.
build_isal() {
  cp -r "$(source_of libisal)" "$own/build/isal"
  cd "$own/build/isal"
  local as=nasm
  [ "$arch" = x86_64 ] || as="$own/bin/cc -fPIC -D__ASSEMBLY__"
  make -f Makefile.unx -j "$jobs" units=crc host_cpu="$arch" CC="$own/bin/cc -fPIC" AS="$as" AR="$own/bin/ar" DEBUG= DEBUG_nasm= lib
  mkdir -p "$prefix/include/isa-l" "$prefix/lib/pkgconfig"
  cp include/*.h "$prefix/include/isa-l/"
  cp bin/isa-l.a "$prefix/lib/libisal.a"
  sed "s|@prefix@|$prefix|; s|@exec_prefix@|$prefix|; s|@libdir@|$prefix/lib|; s|@includedir@|$prefix/include|; s|@VERSION@|2|" libisal.pc.in \
    >"$prefix/lib/pkgconfig/libisal.pc"
}

build_libraries() {
  once "$own" zlib build_zlib
  once "$own" isal build_isal
  once "$own" json with_cmake json "$(source_of nlohmann-json3)" -DJSON_BuildTests=OFF
  once "$own" cli11 with_cmake cli11 "$(source_of cli11)" -DCLI11_BUILD_TESTS=OFF -DCLI11_BUILD_EXAMPLES=OFF -DCLI11_BUILD_DOCS=OFF
  once "$own" zstd with_cmake zstd "$(source_of libzstd)/build/cmake" -DZSTD_BUILD_PROGRAMS=OFF -DZSTD_BUILD_SHARED=OFF
  once "$own" fmt with_cmake fmt "$(source_of fmtlib)" -DFMT_TEST=OFF -DFMT_DOC=OFF
  once "$own" hdf5 with_cmake hdf5 "$(source_of hdf5)" -DBUILD_TESTING=OFF -DHDF5_BUILD_TOOLS=OFF -DHDF5_BUILD_EXAMPLES=OFF -DHDF5_BUILD_HL_LIB=OFF \
    -DHDF5_BUILD_CPP_LIB=OFF -DHDF5_ENABLE_Z_LIB_SUPPORT=ON -DHDF5_ENABLE_SZIP_SUPPORT=OFF -DHDF5_ENABLE_EMBEDDED_LIBINFO=OFF \
    -DHDF5_INSTALL_CMAKE_DIR=lib/cmake/hdf5 "-DCMAKE_C_FLAGS=-w -Wno-implicit-int"
}

# Compiles the project and adds the licences of what is inside. The names of their files tell the versions.
make_wheel() {
  rm -rf "$own/wheel"
  local -a definitions=("CMAKE_TOOLCHAIN_FILE=$toolchain" CMAKE_UNITY_BUILD=ON CMAKE_DISABLE_PRECOMPILE_HEADERS=ON HDF5_USE_STATIC_LIBRARIES=ON
    CCACHE= CMAKE_EXE_LINKER_FLAGS=-s CMAKE_SHARED_LINKER_FLAGS=-s)
  CMAKE_GENERATOR=Ninja CMAKE_BUILD_PARALLEL_LEVEL=$jobs "$python" -m build --wheel --no-isolation --outdir "$own/wheel/built" \
    -C build-dir="$own/build/unishard" -C install.strip=false "${definitions[@]/#/-Ccmake.define.}" "$repository/tools/python"
  "$python" -m wheel unpack --dest "$own/wheel" "$own"/wheel/built/*.whl
  local licenses package
  licenses=$(echo "$own"/wheel/unishard-*/*.dist-info)/licenses
  mkdir "$licenses"
  cp "$repository/LICENSE" "$licenses"
  for package in $packages; do
    package=$(source_of "$package")
    cp "$package/debian/copyright" "$licenses/$(basename "$package").txt"
  done
  for package in libcxx libcxxabi libunwind; do
    cp "$work"/tools/lib/python3*/site-packages/ziglang/lib/$package/LICENSE.TXT "$licenses/$package.txt"
  done
  "$python" -m wheel pack --dest-dir "$own/wheel" "$own"/wheel/unishard-*
  "$python" -m wheel tags --remove --platform-tag "manylinux2014_$arch.manylinux_${glibc/./_}_$arch" "$own"/wheel/*.whl
}

once "$work" tools install_tools
write_toolchain
export ZIG_GLOBAL_CACHE_DIR=$work/zig-cache ZIG_LOCAL_CACHE_DIR=$work/zig-cache PKG_CONFIG_LIBDIR=$prefix/lib/pkgconfig
once "$work" sources fetch_sources
[ "$arch" = "$(uname -m)" ] || once "$own" system unpack_system
build_libraries
rm -f "$own/wheel.done"
once "$own" wheel make_wheel
mkdir -p "$output"
cp "$own"/wheel/*.whl "$output"
echo "$output/$(basename "$own"/wheel/*.whl)"
