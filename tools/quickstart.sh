#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The main job in one command: installs what is missing, builds, and runs all-reduces of 4 ranks under mpirun on the
# recorded gradients and at 16 MB: fp32, HBI at 8, 6 and 4 bits, and MPI_Allreduce on the same buffers. First in shared
# memory; then, as root or with sudo, over TCP between four hosts (network namespaces) with links of 1 and 10 Gbit/s, and otherwise
# over TCP between four faked hosts on the loopback interface and over emulated links of 1 and 10 Gbit/s. Ends with a
# table and a verdict of two lines. The build takes some 3 minutes on 2 cores, the runs after it at most 90 s. A user
# needs sudo for the packages and for the hosts; what is built belongs to the user, also after "sudo tools/quickstart.sh".
#
# usage: tools/quickstart.sh [--no-install] [-j JOBS]
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" = 0 ] && [ "$(stat -c %u .)" = "${SUDO_UID:-0}" ] && [ "${SUDO_UID:-0}" != 0 ]; then
  exec sudo -H -u "$SUDO_USER" "$PWD/tools/quickstart.sh" "$@"
fi
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
progress() { # of ninja: a line for each tenth
  tee "$out/build.log" | awk -F '[][/ ]+' '/^\[[0-9]+\/[0-9]+\]/ {
    tenth = int(10 * $2 / $3); if (tenth > last) print "  " 10 * tenth " %"; last = tenth; fflush() }'
}
if ! { cmake --preset install && cmake --build --preset install -j "$jobs" --target allreduce_bench; } 2>&1 | progress; then
  tail -n 40 "$out/build.log" >&2
  exit 1
fi

codecs=(--codec none --codec hbi:bits=8 --codec hbi:bits=6 --codec hbi:bits=4)
program=build/install/perf/allreduce_bench
sample=$((81920 * 4))

# bench NAME DATA BYTES LAUNCHER... -- OPTION...: one run, its rows in NAME.json.
bench() {
  local name=$1 launch=() command
  local options=(-b "$3" -e "$3" --data "$2" "${codecs[@]}" --json "$out/$1.json")
  shift 3
  while [ "$1" != -- ]; do launch+=("$1"); shift; done
  shift
  command=("${launch[@]}" "$program" "${options[@]}" "$@")
  echo "+ ${command[*]}"
  "${command[@]}" > "$out/$name.log" 2>&1 || { cat "$out/$name.log" >&2; exit 1; }
}

# perf/hosts.sh with a /run of its own, where the names of its network namespaces are: other hosts do not matter.
# shellcheck disable=SC2016 # the inner shell expands it
as_root=()
if [ "$(id -u)" != 0 ] && command -v sudo > /dev/null; then
  as_root=(sudo env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1)
fi
hosts=("${as_root[@]}" unshare --mount sh -c 'mount -t tmpfs none /run && exec "$@"' - perf/hosts.sh run -h "$ranks")

begin=$SECONDS
bench shm_gradients gradients:late "$sample" "${mpi[@]}" -- -n 50 -w 10 --baseline mpi
bench shm_16M normal 16M "${mpi[@]}" -- -n 20 -w 3 --baseline mpi
if "${hosts[@]}" -r 1gbit true > "$out/hosts.log" 2>&1; then
  for gbps in 10 1; do
    link=("${hosts[@]}" -r "${gbps}gbit")
    bench "hosts${gbps}_gradients" gradients:late "$sample" "${link[@]}" -- --init id -n 10 -w 2 --baseline mpi
    bench "hosts${gbps}_16M" normal 16M "${link[@]}" -- --init id -n 4 -w 1 --baseline mpi
  done
else
  echo "no network namespaces: $(tail -n 1 "$out/hosts.log")"
  # Each rank on a host of its own, as far as the library knows; Open MPI uses TCP, too.
  # shellcheck disable=SC2016 # the rank expands it
  faked=("${mpi[@]}" --mca pml ob1 --mca btl "tcp,self" --mca btl_tcp_if_include lo
    sh -c 'INCCL_HOSTID=$OMPI_COMM_WORLD_RANK INCCL_SOCKET_IFNAME=lo exec "$0" "$@"')
  bench faked_gradients gradients:late "$sample" "${faked[@]}" -- --init id -n 10 -w 2 --baseline mpi
  bench faked_16M normal 16M "${faked[@]}" -- --init id -n 4 -w 1 --baseline mpi
  for gbps in 10 1; do
    bench "link${gbps}_gradients" gradients:late "$sample" "${mpi[@]}" -- -n 10 -w 2 --link-gbps "$gbps"
    bench "link${gbps}_16M" normal 16M "${mpi[@]}" -- -n 4 -w 1 --link-gbps "$gbps"
  done
fi
python3 scripts/quickstart_report.py "$out" "$ranks" $((SECONDS - begin))
