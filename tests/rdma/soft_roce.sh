#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What the transport verbs does on an RDMA device of this machine: the promises of transport.h, and sums of 2 and 4
# processes, uncompressed and compressed, whose results have the bits of other transports. Runs in tests/rdma/guest.sh.
#
# usage: tests/rdma/soft_roce.sh [BUILD]   (default: build/release)
set -uo pipefail
build=${1:-build/release}
failed=0
check() {  # NAME COMMAND...
  local name=$1 begin=$SECONDS
  shift
  if "$@"; then echo "ok: $name, $((SECONDS - begin)) s"; else echo "FAILED: $name"; failed=1; fi
}

device() { INCCL_CONF_FILE=/dev/null "$build/tools/inccl-info" --only transports; }
device_works() {
  local out
  out=$(device)
  grep -A 2 '^  verbs ' <<< "$out"
  grep -q '^  verbs  *works' <<< "$out" && grep -q '^    rxe0:1  *ACTIVE, Ethernet' <<< "$out"
}

# Rounds through sleep and around the slots by the ten thousand take minutes in an emulator.
conformance() {
  INCCL_TEST_RDMA=1 "$build/tests/conformance_tests" --gtest_brief=1 \
    --gtest_filter='-*WrapsAroundManyTimes*:*PingPongFromSleep*' 2>&1 | tail -n 20
}

# A table whose last column has the digests of the results.
digests() {  # RANKS TRANSPORT
  INCCL_CONF_FILE=/dev/null INCCL_TRANSPORT=$2 INCCL_SOCKET_IFNAME=lo "$build/perf/allreduce_bench" --ranks "$1" \
    -b 64K -e 1M -f 16 -n 2 -w 0 -c 1 --algo direct --codec none --codec hbi:bits=6 --codec bf16 --data normal \
    --digest --csv
}
same_bits() {  # RANKS
  local ranks=$1 transport reference="" mine
  for transport in shm tcp verbs; do
    mine=$(digests "$ranks" "$transport") || { echo "$mine"; return 1; }
    mine=$(grep '^allreduce,' <<< "$mine" | sed 's/.*,//')
    [ "$(wc -l <<< "$mine")" -eq 12 ] || { echo "$mine"; return 1; }
    [ "$transport" = shm ] && reference=$mine
    if [ "$mine" != "$reference" ]; then
      echo "$ranks ranks: over $transport $mine, over shm $reference"
      return 1
    fi
  done
}

check "the device is used" device_works
check "conformance" conformance
check "2 processes have the bits of shm and tcp" same_bits 2
check "4 processes have the bits of shm and tcp" same_bits 4
exit "$failed"
