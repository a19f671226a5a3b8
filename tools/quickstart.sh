#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The main job in one command: installs what is missing, builds, and runs all-reduces of 4 ranks under mpirun on the
# recorded gradients and at 16 MB: fp32, HBI at 8, 6 and 4 bits, and MPI_Allreduce on the same buffers; in shared memory
# and over emulated links of 1 and 10 Gbit/s. Ends with a table and a verdict of two lines. The runs after the build
# take less than a minute.
#
# usage: tools/quickstart.sh [--no-install] [-j JOBS]
set -euo pipefail
cd "$(dirname "$0")/.."

install=1 jobs=$(nproc)
while [ $# -gt 0 ]; do
  case "$1" in
    --no-install) install=0 ;;
    -j) shift; jobs=${1:?} ;;
    *) echo "usage: $0 [--no-install] [-j JOBS]" >&2; exit 2 ;;
  esac
  shift
done

# Open MPI: as root, and with more ranks than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
ranks=4
mpi=(mpirun -np "$ranks" --bind-to none --mca mpi_yield_when_idle 1)

[ "$install" = 0 ] || scripts/install_packages.sh --build
out=build/quickstart
mkdir -p "$out"
rm -f "$out"/*.json
echo "building (log: $out/build.log)"
launcher=()
if command -v ccache > /dev/null; then
  launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
if ! { cmake --preset release "${launcher[@]}" && cmake --build --preset release -j "$jobs" \
  --target allreduce_bench; } > "$out/build.log" 2>&1; then
  tail -n 40 "$out/build.log" >&2
  exit 1
fi

# bench NAME DATA BYTES OPTION...: one run, its rows in NAME.json.
bench() {
  local name=$1 data=$2 bytes=$3
  shift 3
  local command=("${mpi[@]}" build/release/perf/allreduce_bench -b "$bytes" -e "$bytes" --data "$data"
    --codec none --codec hbi:bits=8 --codec hbi:bits=6 --codec hbi:bits=4 --json "$out/$name.json" "$@")
  echo "+ ${command[*]}"
  "${command[@]}" > "$out/$name.log" 2>&1 || { cat "$out/$name.log" >&2; exit 1; }
}

begin=$SECONDS
sample=$((81920 * 4))
bench shm_gradients gradients:late "$sample" -n 50 -w 10 --baseline mpi
bench shm_16M normal 16M -n 20 -w 3 --baseline mpi
for gbps in 10 1; do
  bench "link${gbps}_gradients" gradients:late "$sample" -n 10 -w 2 --link-gbps "$gbps"
  bench "link${gbps}_16M" normal 16M -n 4 -w 1 --link-gbps "$gbps"
done
python3 scripts/quickstart_report.py "$out" "$ranks" $((SECONDS - begin))
