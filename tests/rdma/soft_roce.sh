#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What the transport verbs does on RDMA devices: the promises of transport.h; sums of 2 and 4 processes, uncompressed,
# compressed and from registered memory, whose results have the bits of shm and tcp; random operations; processes that die
# and stop; a cable that is unplugged, loses packets or carries none; the limit of locked memory. The devices are soft RoCE
# in a virtual machine (guest.sh).
#
# usage: tests/rdma/soft_roce.sh [--long] [BUILD]   (default: build/release)
#   --long   also 10^4 random operations, the fault tests of docs/reliability.md over verbs, whose results come to
#            BUILD/results_rdma, and the transport ucx over the same devices; half an hour
# Without --long it takes a minute and a half on 2 idle processors, and ends after four minutes at the latest. A check that
# waits for limits of time is repeated once where it fails. A check that hangs is wrong; a guest that is only slow is not.
# Exit status: 0; 1 if something is wrong; 77 if this machine cannot run the virtual machine or is too busy for it.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
# What takes a second elsewhere may take some in an emulator, beside other work: soft RoCE sends again after a quarter of a
# second (4.096 us * 2^16), and gives up after two seconds. It does lose packets now and then.
export INCCL_CONF_FILE=/dev/null INCCL_SOCKET_IFNAME=lo INCCL_IB_TIMEOUT=16 INCCL_TEST_SLOWNESS=5

bench=(-w 0 --algo direct --data normal --seed 5)
digest_bench=(-b 64K -e 1M -f 16 -n 1 -c 1 --codec none --codec hbi:bits=6 --codec bf16 --digest --csv)
digests_in() { sed -n 's/^allreduce,.*,\([0-9a-f]\{16\}\)$/\1/p' | tr '\n' ' '; }
# The digests of the results of an all-reduce, one line.
digests() {  # BUILD RANKS TRANSPORT
  "$1/perf/allreduce_bench" --ranks "$2" --transport "$3" "${bench[@]}" "${digest_bench[@]}" 2> /dev/null | digests_in
}

hang=70  # seconds of a check; the longest takes 20 on an idle machine
long=
[ "${1:-}" != --long ] || { long=--long; shift; }
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
  if [ -n "$long" ]; then
    rm -rf "$build/results_rdma"
    mkdir -p "$build/results_rdma"
    export GUEST_OUT=$build/results_rdma GUEST_SECONDS=${GUEST_SECONDS:-3600}
    exec tests/rdma/guest.sh tests/rdma/soft_roce.sh --long --in-guest "$build" "${expected[@]}"
  fi
  export GUEST_SECONDS=${GUEST_SECONDS:-240}
  last= rc=1
  while IFS= read -r line; do
    case $line in
      *guest-ended=*)  # perhaps after half a line
        rc=${line##*guest-ended=} line=${line%guest-ended=*}
        [ -n "$line" ] || continue ;;
      "the checks begin" | ok:* | repeated:* | FAILED:*) last=$SECONDS ;;
    esac
    echo "$line"
  done < <(tests/rdma/guest.sh tests/rdma/soft_roce.sh --in-guest "$build" "${expected[@]}" 2>&1; echo "guest-ended=$?")
  if [ "$rc" -eq 124 ] && [ -n "$last" ] && [ $((SECONDS - last)) -ge "$hang" ]; then
    echo "FAILED: the check after the last one above hangs: none has ended for $((SECONDS - last)) s"
    exit 1
  fi
  [ "$rc" -ne 124 ] || { echo "the machine is too busy: the guest has not ended within $GUEST_SECONDS s"; exit 77; }
  exit "$rc"
fi

build=$2
failed=0 passed=0
up() { sed 's/\..*//' /proc/uptime; }  # seconds since the boot
finish() {
  [ "$failed" -eq 0 ] || exit 1
  [ $# -eq 0 ] || { echo "$*"; exit 77; }
  exit 0
}
check() {  # NAME COMMAND...
  local name=$1 begin=$SECONDS
  shift
  [ -n "$long" ] || [ "$(up)" -lt $((235 - hang)) ] || finish "the machine is too busy: $passed checks have passed in $(up) s, no time for more"
  if "$@"; then
    echo "ok: $name, $((SECONDS - begin)) s"
    passed=$((passed + 1))
  elif [ -n "${timed:-}" ]; then
    echo "repeated: $name, after $((SECONDS - begin)) s"
    timed= check "$name" "$@"
  else
    echo "FAILED: $name, $((SECONDS - begin)) s"
    failed=1
  fi
}
# A benchmark with half of the ranks on either end of the cable, each end a host of its own; $transport, or the default list.
across() {  # RANKS ARGUMENT...
  local half=$(($1 / 2))
  shift
  local all=(-x "INCCL_TRANSPORT=${transport:-}" -x "INCCL_DEBUG=${debug:-WARN}" -x "INCCL_IB_TIMEOUT=${timeout:-$INCCL_IB_TIMEOUT}"
             -x INCCL_CONF_FILE -x INCCL_SOCKET_IFNAME)
  [ -z "${INCCL_UCX_TLS:-}" ] || all+=(-x INCCL_UCX_TLS -x UCX_UD_VERBS_ETH_DGID_CHECK)
  [ -n "${transport:-}" ] || all=("${all[@]:2}")
  timeout 60 mpirun --allow-run-as-root --oversubscribe \
    -np "$half" "${all[@]}" -x INCCL_IB_HCA=rxe0 -x UCX_NET_DEVICES=rxe0:1 -x INCCL_HOSTID=near "$build/perf/allreduce_bench" "$@" : \
    -np "$half" "${all[@]}" -x INCCL_IB_HCA=rxe1 -x UCX_NET_DEVICES=rxe1:1 -x INCCL_HOSTID=far "$build/perf/allreduce_bench" "$@"
}
sent() { cat "/sys/class/infiniband/rxe$1/ports/1/hw_counters/sent_pkts"; }

devices_work() {
  local out
  out=$("$build/tools/inccl-info" --only transports)
  grep -A 2 '^  verbs ' <<< "$out"
  grep -q '^  verbs  *works' <<< "$out" && [ "$(grep -c '^    rxe[01]:1  *ACTIVE, Ethernet' <<< "$out")" -eq 2 ]
}
# Without rounds by the ten thousand, which take minutes in an emulator.
conformance() {  # WORLDS
  local rc=0
  INCCL_TEST_RDMA=1 "$build/tests/conformance_tests" \
    --gtest_filter="$1-*WrapsAroundManyTimes*:*PingPongFromSleep*" > /dev/shm/conformance 2>&1 || rc=$?
  sed -n 's/.*OK \] \(.*\) (\([0-9]*\) ms)/\2 ms \1/p' /dev/shm/conformance | sort -n | tail -n 3
  [ "$rc" -eq 0 ] || grep -v 'OK \]\|RUN  ' /dev/shm/conformance | tail -n 40
  return $rc
}
same_bits() {  # RANKS EXPECTED ARGUMENT...
  local ranks=$1 expected=$2 mine
  shift 2
  mine=$(across "$ranks" "${bench[@]}" "${digest_bench[@]}" "$@" 2> /dev/shm/errors | digests_in)
  [ "$mine" = "$expected" ] && return
  echo "$ranks ranks: over verbs \"$mine\", elsewhere \"$expected\""
  tail -c 2000 /dev/shm/errors
  return 1
}
# By default, hosts with RDMA devices take them.
chosen_by_default() {
  local packets
  packets=$(sent 0)
  debug=INFO same_bits 4 "$1" || return 1
  [ "$(($(sent 0) - packets))" -gt 500 ] || { echo "no packets were sent"; return 1; }
}
gtest() {  # PROGRAM SOURCE FILTER
  INCCL_TEST_RDMA=1 "$build/tests/$1" --gtest_brief=1 --gtest_filter="$3" \
    ${long:+--gtest_output=xml:/guest-out/${1%_tests}_$2.xml} 2>&1 | grep -v ' inccl WARN ' | tail -n 20
}
mixed_operations() {  # COUNT
  INCCL_TRANSPORT=${transport:-verbs} INCCL_TEST_RANKS=4 INCCL_TEST_OPERATIONS=$1 "$build/tests/api_tests" \
    --source=stress_test.cc --gtest_brief=1 2>&1 | tail -n 20
}
# Ranks sum until the cable is unplugged; the error names a lost peer, and the port. (mpirun kills the others as soon as one
# rank has ended with it.) roce0 has a queue, as an adapter has. Without one the driver tells soft RoCE of Linux 6.1 that the
# packet is dropped, and soft RoCE sends it again at once, without end, in the kernel.
unplugged() {
  local log=/dev/shm/unplugged bench_pid rc=0 packets
  tc qdisc add dev roce0 root pfifo || return 1
  packets=$(sent 0)
  transport=verbs across 4 -b 256K -e 256K -n 1000000 "${bench[@]}" --codec none > $log 2>&1 &
  bench_pid=$!
  for _ in $(seq 300); do
    [ "$(($(sent 0) - packets))" -lt 2000 ] || break
    sleep 0.1
  done
  ip link set roce1 down
  wait $bench_pid || rc=$?
  ip link set roce1 up
  tc qdisc delete dev roce0 root
  ip neighbour replace 10.78.0.1 lladdr "$(cat /sys/class/net/roce0/address)" dev roce1 nud permanent
  ip neighbour replace 10.78.0.2 lladdr "$(cat /sys/class/net/roce1/address)" dev roce0 nud permanent
  ip route replace 10.78.0.1 dev roce1 table 100
  ip route replace 10.78.0.2 dev roce0 table 100
  local named='rank \([0-3]\)/4 .* peer [0-3]@[^ ]* is lost: .*; rxe[01]:1 is DOWN$'
  [ "$rc" -ne 0 ] && grep -q "inccl WARN remote error: $named" $log && return
  echo "exit status $rc"
  tail -c 3000 $log
  return 1
}
# Packets get lost; the devices send them again.
lossy() {
  tc qdisc add dev roce0 root netem loss 1% delay 1ms || return 1
  transport=verbs same_bits 2 "$1"
  local rc=$?
  tc qdisc delete dev roce0 root
  return $rc
}
# A network that carries no RDMA shows at the join, and the ranks take TCP.
blocked() {
  tc qdisc add dev roce0 root netem loss 100% || return 1
  transport=verbs,tcp timeout=14 same_bits 4 "$1"
  local rc=$?
  tc qdisc delete dev roce0 root
  grep -q 'joined over .*tcp, because verbs: between ranks 0 and 2: .*rxe[01]:1: transport retry counter exceeded' \
    /dev/shm/errors && return $rc
  tail -c 2000 /dev/shm/errors
  return 1
}
# Six ranks need 10 MiB. Root may lock as much as it likes.
limited() {
  local out
  out=$(ulimit -l 8192; INCCL_TRANSPORT=verbs setpriv --bounding-set=-ipc_lock \
    "$build/perf/allreduce_bench" --ranks 6 -b 1K -e 1K -n 1 2>&1)
  grep -q 'rxe[01]:1: registration of 10240 KiB: .* may lock 8192 KiB .*ulimit -l unlimited' <<< "$out" && return
  tail -c 2000 <<< "$out"
  return 1
}

echo "the checks begin"
check "the devices are used" devices_work
transport=verbs check "2 processes have the bits of shm and tcp" same_bits 2 "$3"
[ -n "$long" ] || [ "$(up)" -lt 40 ] || finish "the machine is too busy: the first two checks took $(up) s, 15 on an idle one"
transport=verbs check "4 processes have the bits of shm and tcp" same_bits 4 "$4"
transport=verbs check "registered memory gives the same bits" same_bits 4 "$4" --buffers mem_alloc
check "the default list has RDMA" chosen_by_default "$4"
timed=1 check "killed processes end the calls of the others" gtest faults_tests abort_on_error_test '*Row1_*'
timed=1 check "stopped processes are named by the others" gtest faults_tests silence_test '*Row02_AStoppedPeer*'
check "lost packets are sent again" lossy "$3"
timed=1 check "a network without RDMA is found at the join" blocked "$4"
check "the limit of locked memory is named" limited
check "random operations" mixed_operations 300
check "conformance" conformance '*/Verbs*'
timed=1 check "an unplugged cable is named" unplugged
[ -n "$long" ] || finish

faults() {  # SOURCE [FILTER]: of all its tests, or of those in the program that makes calls of the system fail
  local which=(faults_tests --source="$1.cc")
  [ $# -eq 1 ] || which=(faults_interposed_tests --gtest_filter="$2")
  INCCL_TEST_RDMA=1 "$build/tests/${which[0]}" "${which[1]}" --gtest_output="xml:/guest-out/faults_$1.xml" \
    > /dev/shm/faults 2>&1 && return
  grep -v 'OK \]\|RUN  \| inccl WARN ' /dev/shm/faults | tail -n 40
  return 1
}
timed=1 check "killed processes, in several algorithms" gtest api_tests errors_test 'DeathTest.SurvivorsLearnWhoDied'
check "10^4 random operations" mixed_operations 5000
for source in death_sweep_test abort_on_error_test silence_test abort_test shrink_sweep_test usage_test residual_test \
  process_test init_test init_sweep_test grow_sweep_test; do
  check "$source over verbs" faults "$source"
done
timed=1 check "a cable that is cut, flaps, or carries little" faults rdma_network_test
check "too few descriptors" faults resources_test '*Row16*'
check "calls of the system that fail" faults syscalls_test '*EveryCallOfTheSystem*'

# The same devices by UCX, over its connections that are reliable and over those that are not.
export UCX_NET_DEVICES=rxe0:1,rxe1:1 UCX_UD_VERBS_ETH_DGID_CHECK=n  # else rxe's datagrams are filtered away
for tls in rc_verbs,ud_verbs,self ud_verbs,self; do  # rc connects by ud
  export INCCL_UCX_TLS=$tls
  transport=ucx check "ucx over $tls: random operations" mixed_operations 50
  transport=ucx check "ucx over $tls: 2 processes have the bits of shm and tcp" same_bits 2 "$3"
  transport=ucx check "ucx over $tls: 4 processes have the bits of shm and tcp" same_bits 4 "$4"
done
# Over rc_verbs an assertion in UCX 1.13 has ended the process (ucp_request.c:684).
check "ucx over ud_verbs,self: conformance" conformance '*/UcxBlind'
finish
