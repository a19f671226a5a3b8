#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What the transport verbs does on an RDMA device: the promises of transport.h, and sums of 2 and 4 processes, uncompressed
# and compressed, whose results have the bits of shm and tcp. The device is soft RoCE in a virtual machine (guest.sh).
#
# usage: tests/rdma/soft_roce.sh [BUILD]   (default: build/release)
# Exit status: 0; 1 if something is wrong; 77 if this machine cannot run the virtual machine.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
export INCCL_CONF_FILE=/dev/null INCCL_SOCKET_IFNAME=lo

# The digests of the results of an all-reduce, one line.
digests() {  # BUILD RANKS TRANSPORT
  INCCL_TRANSPORT=$3 "$1/perf/allreduce_bench" --ranks "$2" -b 64K -e 1M -f 16 -n 1 -w 0 -c 1 --algo direct --codec none \
    --codec hbi:bits=6 --codec bf16 --data normal --seed 5 --digest --csv 2> /dev/null |
    sed -n 's/^allreduce,.*,\([0-9a-f]\{16\}\)$/\1/p' | tr '\n' ' '
}

if [ "${1:-}" != --in-guest ]; then
  build=${1:-build/release}
  expected=()
  for ranks in 2 4; do
    shm=$(digests "$build" "$ranks" shm)
    tcp=$(digests "$build" "$ranks" tcp)
    if [ "$(wc -w <<< "$shm")" -ne 12 ] || [ "$shm" != "$tcp" ]; then
      echo "$ranks ranks: over shm \"$shm\", over tcp \"$tcp\""
      exit 1
    fi
    expected+=("$shm")
  done
  exec tests/rdma/guest.sh tests/rdma/soft_roce.sh --in-guest "$build" "${expected[@]}"
fi

build=$2
failed=0
check() {  # NAME COMMAND...
  local name=$1 begin=$SECONDS
  shift
  if "$@"; then echo "ok: $name, $((SECONDS - begin)) s"; else echo "FAILED: $name"; failed=1; fi
}
device_works() {
  local out
  out=$("$build/tools/inccl-info" --only transports)
  grep -A 2 '^  verbs ' <<< "$out"
  grep -q '^  verbs  *works' <<< "$out" && grep -q '^    rxe0:1  *ACTIVE, Ethernet' <<< "$out"
}
# Without rounds by the ten thousand, which take minutes in an emulator.
conformance() {
  INCCL_TEST_RDMA=1 "$build/tests/conformance_tests" --gtest_brief=1 \
    --gtest_filter='-*WrapsAroundManyTimes*:*PingPongFromSleep*' 2>&1 | tail -n 20
}
same_bits() {  # RANKS EXPECTED
  local mine
  mine=$(digests "$build" "$1" verbs)
  [ "$mine" = "$2" ] || { echo "$1 ranks: over verbs \"$mine\", elsewhere \"$2\""; return 1; }
}

# 3 processes sum until one of them is killed; the others name it.
killed() {
  local log=/dev/shm/killed bench victim="" rc=0
  INCCL_TRANSPORT=verbs "$build/perf/allreduce_bench" --ranks 3 -b 256K -e 256K -n 1000000 -w 1 --codec none > "$log" 2>&1 &
  bench=$!
  for _ in $(seq 200); do
    victim=$(sed -n 's/^# *Rank *2 Pid *\([0-9]*\) .*/\1/p' "$log")
    [ -z "$victim" ] || break
    sleep 0.2
  done
  sleep 3  # until they sum
  kill -KILL "$victim"
  wait "$bench" || rc=$?
  [ "$rc" -ne 0 ] && grep -q "peer 2@guest:$victim" "$log" && return
  echo "exit status $rc"
  tail -c 2000 "$log"
  return 1
}

check "the device is used" device_works
check "2 processes have the bits of shm and tcp" same_bits 2 "$3"
check "4 processes have the bits of shm and tcp" same_bits 4 "$4"
check "a killed process is named by the others" killed
check "conformance" conformance
exit "$failed"
