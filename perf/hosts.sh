#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Several hosts on one machine, for benchmarks: network namespaces inccl-0, inccl-1, ..., each with a NIC e0
# (10.77.0.1/24, fd77::1/64, ...) on the bridge of the namespace inccl-switch. Touches no other namespace. Needs root, `ip`
# and `tc` (iproute2); run needs Open MPI.
#
# usage: perf/hosts.sh up RATE [HOSTS] [DELAY_MS [LOSS [SITES[:RATE]]]]
#                                                   RATE of each link in each direction: 1gbit, 10gbit, ..., or none; 4 hosts
#        perf/hosts.sh down
#        perf/hosts.sh exec HOST COMMAND...         runs a command in a host (0, 1, ...)
#        perf/hosts.sh run [-s SLOTS] [-r RATE] [-h HOSTS] [-d DELAY_MS] [-l LOSS] [-S SITES[:RATE]]
#                          [-m "MPIRUN OPTIONS"] COMMAND...
#   run: a command under mpirun, with SLOTS ranks on each host (1), ranks of one host beside each other. MPI's own traffic
#   uses TCP between hosts and shared memory inside a host. All variables INCCL_* are passed on. With -r the hosts are made
#   for this command and removed after it, also when it is interrupted; else they must be up.
#   DELAY_MS makes the links long: a packet travels as long one way, and a share of LOSS of them (0) is lost. Such a link
#   (perf/delay_switch.cc) needs a RATE in mbit or gbit; what mpirun itself sends takes another one, m0, without delay.
#   With SITES, host K is on the site K modulo SITES. Only links between sites are long; the hosts of a site share one of
#   RATE, if it is given.
set -euo pipefail

usage() { sed -n 's/^# \{0,1\}//; 7,19p' "$0" >&2; exit 2; }
die() { echo "$0: $*" >&2; exit 1; }

# The namespaces that this script has made, one in a line.
ours() { ip netns list | awk '$1 ~ /^inccl-(switch|[0-9]+)$/ { print $1 }'; }
count_hosts() { ours | grep -vc switch || true; }

down() { # links end with the namespaces, these with the processes in them
  local name
  for name in $(ours); do
    ip netns pids "$name" | xargs -r kill -KILL || true
    ip netns del "$name"
  done
}

make_host() { # NUMBER RATE NIC NETWORK
  local name=inccl-$1 port=port$1 n=$(($1 + 1)) nic=$3
  ip netns add "$name"
  ip -n inccl-switch link add "$port" type veth peer name "$nic" netns "$name"
  ip -n inccl-switch link set "$port" master switch up
  ip -n "$name" link set lo up
  ip -n "$name" addr add "$4.$n/24" dev "$nic"
  if [ "$nic" = e0 ] && [ -e /proc/net/if_inet6 ]; then
    ip -n "$name" addr add "fd77::$(printf %x "$n")/64" dev e0 nodad
  fi
  ip -n "$name" link set "$nic" up
  if [ "$2" != none ]; then
    tc -n "$name" qdisc add dev e0 root tbf rate "$2" burst 256kb latency 50ms
    tc -n inccl-switch qdisc add dev "$port" root tbf rate "$2" burst 256kb latency 50ms
  fi
}

in_mbit() { # RATE
  local mbit=${1%mbit}
  [[ $1 != *gbit ]] || mbit=$((${1%gbit} * 1000))
  [[ $mbit =~ ^[1-9][0-9]*$ ]] || die "with a delay, expected a rate in mbit or gbit, got \"$1\""
  echo "$mbit"
}

# The NICs e0 of all hosts, whose packets take a while.
lay_cables() { # RATE HOSTS DELAY_MS LOSS SITES[:RATE]
  local mbit bin i names=() run=() sites=${5%%:*} site_mbit=0
  mbit=$(in_mbit "$1")
  [[ $5 != *:* ]] || site_mbit=$(in_mbit "${5#*:}")
  [[ $sites =~ ^[0-9]+$ ]] || die "expected a number of sites, got \"$sites\""
  [[ $3 =~ ^[0-9]+([.][0-9]+)?$ ]] || die "expected a delay in milliseconds, got \"$3\""
  [[ $4 =~ ^(0|0?[.][0-9]+)$ ]] || die "expected a loss between 0 and 1, got \"$4\""
  command -v c++ > /dev/null || die "no C++ compiler: install g++"
  bin=$(mktemp -d)
  c++ -std=c++20 -O2 -o "$bin/delay_switch" "$(dirname "$(readlink -f "$0")")/delay_switch.cc"
  for ((i = 0; i < $2; i++)); do names+=("inccl-$i"); done
  chrt -r 30 true 2> /dev/null && run=(chrt -r 30)
  "${run[@]}" "$bin/delay_switch" "$3" "$mbit" 50 "$4" "$sites" "$site_mbit" "${names[@]}" > "$bin/ready" 2>&1 < /dev/null &
  for ((i = 0; i < 100; i++)); do
    grep -q ready "$bin/ready" && break
    sleep 0.1
  done
  grep -q ready "$bin/ready" || die "the links were not made: $(cat "$bin/ready")"
  rm -r "$bin"
}

up() { # RATE HOSTS [DELAY_MS [LOSS [SITES[:RATE]]]]
  local i nic=e0 network=10.77.0 rate=$1
  [[ $2 =~ ^[1-9][0-9]*$ && $2 -le 200 ]] || die "expected 1 to 200 hosts, got \"$2\""
  [ -n "${3:-}" ] || [ "${5:-0}" = 0 ] || die "sites need a delay (-d)"
  [ -z "$(ours)" ] || die "hosts are up already; remove them with: $0 down"
  trap down EXIT # until all is made
  ip netns add inccl-switch
  ip -n inccl-switch link set lo up
  ip -n inccl-switch link add switch type bridge mcast_snooping 0
  [ -z "${3:-}" ] || nic=m0 network=10.76.0 rate=none
  ip -n inccl-switch addr add "$network.254/24" dev switch # of mpirun
  ip -n inccl-switch link set switch up
  for ((i = 0; i < $2; i++)); do make_host "$i" "$rate" "$nic" "$network"; done
  [ -z "${3:-}" ] || lay_cables "$1" "$2" "$3" "${4:-0}" "${5:-0}"
  trap - EXIT
}

# What mpirun starts in the place of ssh: ADDRESS COMMAND...
agent() {
  local name=inccl-$((${1##*.} - 1))
  shift
  exec ip netns exec "$name" unshare --uts /bin/sh -c "hostname $name; $*"
}

run() {
  local slots=1 rate='' hosts=4 delay='' loss=0 sites=0 more=() list='' name i status=0 forward=() network=10.77.0
  while getopts s:r:h:d:l:S:m: option; do
    case $option in
      s) slots=$OPTARG ;;
      r) rate=$OPTARG ;;
      h) hosts=$OPTARG ;;
      d) delay=$OPTARG ;;
      l) loss=$OPTARG ;;
      S) sites=$OPTARG ;;
      m) read -ra more <<< "$OPTARG" ;;
      *) usage ;;
    esac
  done
  shift $((OPTIND - 1))
  [ $# -gt 0 ] || usage
  [[ $slots =~ ^[1-9][0-9]*$ ]] || die "expected a number of slots, got \"$slots\""
  command -v mpirun > /dev/null || die "no mpirun: install openmpi-bin"
  if [ -n "$rate" ]; then
    up "$rate" "$hosts" "$delay" "$loss" "$sites"
    trap down EXIT
  fi
  hosts=$(count_hosts)
  [ "$hosts" -gt 0 ] || die "no hosts are up; make them with: $0 up RATE, or give -r RATE"
  if ip -n inccl-0 link show m0 > /dev/null 2>&1; then
    network=10.76.0
    export INCCL_SOCKET_IFNAME=${INCCL_SOCKET_IFNAME:-e0}
  fi
  for ((i = 1; i <= hosts; i++)); do list+=${list:+,}$network.$i:$slots; done
  for name in $(compgen -e INCCL_ || true); do forward+=(-x "$name"); done
  # In the background: bash runs a trap at once only while it waits.
  ip netns exec inccl-switch mpirun --allow-run-as-root -np $((hosts * slots)) -H "$list" \
    --mca plm_rsh_agent "$(readlink -f "$0") agent" --mca plm_rsh_no_tree_spawn 1 --mca orte_leave_session_attached 1 \
    --mca oob_tcp_if_include $network.0/24 --mca btl_tcp_if_include 10.77.0.0/24 --mca pml ob1 --mca btl tcp,vader,self \
    --mca mpi_yield_when_idle 1 --bind-to none "${forward[@]}" "${more[@]}" "$@" <&0 &
  trap 'kill -TERM $!; wait $! || true; exit 130' INT TERM HUP
  wait $! || status=$?
  return "$status"
}

[ $# -gt 0 ] || usage
command=$1
shift
case $command in up | down | run | exec | agent) ;; *) usage ;; esac
[ "$(id -u)" -eq 0 ] || die "needs root, to make network namespaces"
for program in ip tc; do
  command -v $program > /dev/null || die "no $program: install iproute2"
done
case $command in
  up)
    [ $# -ge 1 ] && [ $# -le 5 ] || usage
    up "$1" "${2:-4}" "${3:-}" "${4:-0}" "${5:-0}"
    ;;
  exec)
    [ $# -ge 2 ] || usage
    name=inccl-$1
    ours | grep -qx "$name" || die "no host $1 is up"
    shift
    exec ip netns exec "$name" "$@"
    ;;
  down) down ;;
  run) run "$@" ;;
  agent) agent "$@" ;;
esac
