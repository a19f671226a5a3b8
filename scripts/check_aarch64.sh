#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds for 64-bit ARM with a cross compiler and runs the tests of codecs and of what they stand on in an emulator: NEON
# gives the bytes that every other instruction set gives. Debian 12, on another processor. The ARM libraries come from
# Debian as well, but are only unpacked below build/: nothing of them is installed.
#
# usage: scripts/check_aarch64.sh [-j JOBS]
# The compiler and the emulator: apt-get install g++-aarch64-linux-gnu qemu-user
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=$(nproc)
while [ $# -gt 0 ]; do
  case "$1" in
    -j) shift; jobs=${1:?} ;;
    *) sed -n 's/^# \{0,1\}//; 7,8p' "$0" >&2; exit 2 ;;
  esac
  shift
done
for program in aarch64-linux-gnu-g++ qemu-aarch64; do
  command -v "$program" > /dev/null ||
    { echo "$0: no $program; apt-get install g++-aarch64-linux-gnu qemu-user" >&2; exit 1; }
done

# Packages of ARM, by an apt that knows of nothing else and owns no state of the machine.
packages=$PWD/build/aarch64-packages root=$PWD/build/aarch64-packages/root
if [ ! -e "$root/complete" ]; then
  rm -rf "$packages"
  mkdir -p "$packages"/{lists,archives}/partial "$root"
  touch "$packages/status"
  printf '%s\n' 'APT::Architecture "arm64";' 'APT::Architectures "arm64";' 'APT::Sandbox::User "root";' \
    "Dir::State::lists \"$packages/lists\";" "Dir::State::status \"$packages/status\";" \
    "Dir::Cache \"$packages\";" "Dir::Cache::archives \"$packages/archives\";" > "$packages/apt.conf"
  export APT_CONFIG=$packages/apt.conf
  apt-get -qq update
  (cd "$packages" && apt-get -qq download libfmt-dev libfmt9 libgtest-dev libhwy-dev libhwy1 libssl-dev libssl3)
  for package in "$packages"/*.deb; do dpkg-deb --extract "$package" "$root"; done
  unset APT_CONFIG
  touch "$root/complete"
fi

cmake --preset aarch64
cmake --build --preset aarch64 -j "$jobs"

# Death tests start their own program again, which the kernel cannot run without the emulator.
failed=0
for test in build/aarch64/tests/{base,compress,compress_counting}_tests; do
  if INCCL_CONF_FILE=/dev/null qemu-aarch64 -L /usr/aarch64-linux-gnu \
      -E LD_LIBRARY_PATH="$root/usr/lib/aarch64-linux-gnu" "$test" --gtest_brief=1 --gtest_filter=-*DeathTest*; then
    echo "ok: $test"
  else
    echo "FAILED: $test"
    failed=1
  fi
done
exit "$failed"
