#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs, on Debian 12, the packages that building and testing need; only those that are missing, with apt-get, as
# root or with sudo.
#
# usage: scripts/install_packages.sh [--build | --long | --rdma]
#   --build   only what README.md, docs/install.md and docs/python.md need to build, install and run: not the second
#             compiler and the linters of tools/check.sh
#   --long    also what tools/check.sh --long needs: a compiler and an emulator for 64-bit ARM, debootstrap
#   --rdma    only what the virtual machine of tests/rdma/guest.sh needs
set -euo pipefail

packages=(g++ cmake make ninja-build ccache pkg-config python3 python3-venv file dpkg-dev iproute2 libfmt-dev libhwy-dev libssl-dev libgtest-dev
          libopenmpi-dev openmpi-bin libucx-dev libibverbs-dev libhwloc-dev nlohmann-json3-dev libcli11-dev libbenchmark-dev)
checking=(binutils clang-14 libclang-rt-14-dev clang-format-14 clang-tidy-14 util-linux nftables
          mpich)  # for mpiexec.hydra; mpicc and mpiexec stay Open MPI's, which has the higher priority

case "${1:-}" in
  "") packages+=("${checking[@]}") ;;
  --build) ;;
  --long) packages+=("${checking[@]}" g++-aarch64-linux-gnu qemu-user debootstrap) ;;
  --rdma) packages=(qemu-system-x86 linux-image-amd64 busybox-static cpio rdma-core kmod iproute2) ;;
  *) echo "usage: $0 [--build | --long | --rdma]" >&2; exit 2 ;;
esac

if ! command -v dpkg-query > /dev/null; then
  echo "$0: not a Debian system; install by hand what corresponds to: ${packages[*]}" >&2
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo > /dev/null || { echo "$0: run as root, or install sudo: ${missing[*]} missing" >&2; exit 1; }
  as_root=(sudo)
fi
echo "installing ${missing[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
"${apt[@]}" update
"${apt[@]}" install --no-install-recommends -y "${missing[@]}" > /dev/null
