#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, on a machine with one and without a network, in under nine minutes, from a tree that is
# built here or brought along (docs/cuda.md): all tests on the GPU, those of the kernels under compute-sanitizer, the
# kernels' throughput beside the device's copy, all-reduce of several ranks on one GPU, NCCL where each rank has its own.
# Results: suite.json, table.md, and each part's own files and logs.
#
# usage: perf/gpu_suite.sh [BUILD_DIR [OUTPUT_DIR]]        (build/release, BUILD_DIR/gpu)
#        perf/gpu_suite.sh --pack BUILD_DIR DIR            what it needs of a build, with libraries, to be brought along
# Exit status: 0 if all that could run is well; 1 if something failed; 4 where there is no GPU.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

programs_of() { # BUILD_DIR: what is run, relative to it
  (cd "$1" && ls tests/cuda_tests perf/cuda_probe perf/cuda_kernel_bench perf/allreduce_bench perf/alltoall_bench perf/sendrecv_bench)
}

pack() {
  local build=$1 to=$2 file library
  mkdir -p "$to/lib" "$to/perf" "$to/tests" || return 1
  for file in $(programs_of "$build"); do
    cp "$build/$file" "$to/$file" && strip "$to/$file" || return 1
  done
  cp -L "$build"/src/libinccl.so.0 "$build"/src/libinccl_cuda.so.0 "$to/lib/" || return 1
  strip "$to"/lib/*
  # The system's C library is that of where it runs; what of MPI and others the programs name comes along.
  for library in $(for file in "$to"/perf/* "$to"/tests/* "$to"/lib/*; do ldd "$file"; done |
    awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u); do
    case $(basename "$library") in
      libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | libcuda.so.* | libinccl*) ;;
      *) cp -L "$library" "$to/lib/" || return 1 ;;
    esac
  done
  echo "needs the C library of $(grep -aoh 'GLIBC_2\.[0-9]*' "$to"/perf/* "$to"/tests/* "$to"/lib/* | sort -Vu | tail -n 1), or newer"
  du -sh "$to"
}

if [ "${1:-}" = --pack ]; then
  if [ $# -ne 3 ]; then
    echo "usage: $0 --pack BUILD_DIR DIR" >&2
    exit 1
  fi
  pack "$2" "$3"
  exit
fi

build=${1:-build/release}
out=${2:-$build/gpu}
mkdir -p "$out" || exit 1
for program in tests/cuda_tests perf/cuda_kernel_bench perf/allreduce_bench; do
  if [ ! -x "$build/$program" ]; then
    echo "$0: no $build/$program: configure with INCCL_CUDA=ON, and build all" >&2
    exit 1
  fi
done
# For the programs of the build alone: others here belong to another system.
with_libraries=()
if [ -d "$build/lib" ]; then # of --pack
  with_libraries=(env "LD_LIBRARY_PATH=$(cd "$build/lib" && pwd)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
fi
# Streams that share one of the device's queues wait for each other, and ranks that are threads have many (docs/cuda.md).
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32}
# What hangs says which device or peer it waits for, before its part's time is over.
export INCCL_OP_TIMEOUT_MS=${INCCL_OP_TIMEOUT_MS:-8000}
unset ${!OMPI_*} ${!PMI*} # the benchmarks fork their ranks

limit=${INCCL_GPU_SUITE_SECONDS:-520} failed=0 steps=()
unset INCCL_GPU_SUITE_SECONDS # no variable of the library's

# What there is at the end, also when the caller stops it.
finish() {
  trap - EXIT
  printf -v joined ',\n  %s' "${steps[@]}"
  printf '{"seconds": %d, "failed": %s, "steps": [%s\n]}\n' "$SECONDS" \
    "$([ "$failed" -eq 0 ] && echo false || echo true)" "${joined:1}" > "$out/steps.json"
  if command -v python3 > /dev/null; then
    python3 scripts/gpu_report.py "$out" || failed=1
  else
    echo "no python3 here: scripts/gpu_report.py $out makes suite.json and table.md elsewhere"
  fi
  exit "$failed"
}

debugger=$(command -v gdb)
# step NAME SECONDS COMMAND...: at most so long, and not beyond the end of all; its output in a log, its end shown if it
# fails or runs out of time. That is a failure, but for benchmarks that have left some results.
step() {
  local name=$1 most=$2 start=$SECONDS log=$out/$1.log rc running watcher
  shift 2
  if [ $((limit - SECONDS)) -lt 8 ]; then
    skipped "$name" "no time was left"
    return 1
  fi
  [ "$most" -le $((limit - SECONDS)) ] || most=$((limit - SECONDS))
  echo "== $name"
  timeout -k 5 "$most" "${with_libraries[@]}" "$@" > "$log" 2>&1 &
  running=$!
  stacks "$running" "$most" "$log" > /dev/null 2>&1 &
  watcher=$!
  wait "$running"
  rc=$?
  kill "$watcher" 2> /dev/null
  if [ "$rc" -eq 124 ] && grep -qs '"time_us"' "$out/bench.$name.json"; then
    echo "   stopped after $most s"
  elif [ "$rc" -ne 0 ]; then
    tail -n 40 "$log"
    failed=1
  fi
  steps+=("{\"step\": \"$name\", \"exit_status\": $rc, \"seconds\": $((SECONDS - start)), \"limit\": $most}")
  return "$rc"
}
# PID SECONDS LOG: where the processes of a step stand, three seconds before it is killed.
stacks() {
  local child ranks sleeper
  [ -n "$debugger" ] || return 0
  sleep $(($2 - 3)) &
  sleeper=$!
  trap 'kill "$sleeper"; exit' TERM
  wait "$sleeper"
  for child in $(pgrep -P "$1"); do
    ranks=$(pgrep -P "$child")
    for child in $child $ranks; do
      timeout 2 "$debugger" -p "$child" -batch -ex 'thread apply all bt 12' 2> /dev/null >> "$3"
    done
  done
}
skipped() {
  echo "== $1: not run, $2"
  steps+=("{\"step\": \"$1\", \"not_run\": \"$2\"}")
}

"${with_libraries[@]}" "$build/perf/cuda_kernel_bench" --elements 1048576 --rounds 1 > "$out/device.log" 2>&1
status=$?
if [ "$status" -eq 4 ] || [ "$status" -eq 126 ] || [ "$status" -eq 127 ]; then # no GPU; cannot be started here
  cat "$out/device.log"
  exit $((status == 4 ? 4 : 1))
fi
rm -f "$out"/*.json
trap finish EXIT

nvidia-smi -q > "$out/nvidia-smi.log" 2>&1
nvidia-smi topo -m >> "$out/nvidia-smi.log" 2>&1
# What hangs while a stream waits, by settings that change it.
step probe 30 "$build/perf/cuda_probe" && cat "$out/probe.log"
step probe.default_connections 20 env -u CUDA_DEVICE_MAX_CONNECTIONS "$build/perf/cuda_probe"
for setting in CUDA_DEVICE_MAX_CONNECTIONS=1 CUDA_MODULE_LOADING=EAGER CUDA_LAUNCH_BLOCKING=1; do
  step "probe.$setting" 20 env "$setting" "$build/perf/cuda_probe"
done
# 10^8 elements, byte for byte.
step cuda_tests 60 env INCCL_TEST_ELEMENTS=100000000 GTEST_OUTPUT="json:$out/cuda_tests.tests.json" \
  "$build/tests/cuda_tests" --gtest_filter='-CudaHangs.*'
for loading in LAZY EAGER; do
  step hangs.$loading 30 env CUDA_MODULE_LOADING=$loading "$build/tests/cuda_tests" --gtest_filter='CudaHangs.*'
done
step kernels 45 "$build/perf/cuda_kernel_bench" --json "$out/kernels.json" && cat "$out/kernels.log"

# bench NAME SECONDS PROGRAM ARGUMENT...: on the device, with a file for the report.
bench() {
  local name=$1 most=$2 program=$3
  shift 3
  step "$name" "$most" "$build/perf/${program}_bench" --device cuda --json "$out/bench.$name.json" "$@"
}
codecs=(--codec none --codec hbi:bits=8 --codec hbi:bits=6 --codec hbi:bits=4)
small=(-b 64K -e 16M -f 4 -n 20 -w 3 --row-seconds 0.25)
large=(-b 64M -e 1G -f 4 -n 5 -w 1 --row-seconds 0.4 -c 0) # the oracle takes longer than the calls
registered=(--buffers mem_alloc) # ranks on one GPU read such buffers without a copy
latency=(-b 4K -e 4K -n 2000 -w 200 --row-seconds 2 --tails)

# Ranks are threads wherever several share a GPU: processes get it in turns of milliseconds, which is all that their times show.
bench latency.processes.2.shm 15 allreduce --ranks 2 "${latency[@]}"
bench latency.threads.2.shm 15 allreduce --threads 2 "${latency[@]}"
# What the goals ask for first, in case that time runs out.
bench goals.threads.4.shm 20 allreduce "${registered[@]}" --threads 4 -b 256M -e 256M -n 10 -w 2 --row-seconds 2 -c 0 --limit "${codecs[@]}"
bench goals.threads.4.100 20 allreduce --threads 4 -b 256M -e 256M -n 5 -w 1 --row-seconds 2 -c 0 --link-gbps 100 "${codecs[@]}"

# The same calls on both kinds of memory: their results' digests are compared.
same=(--threads 4 -b 64K -e 16M -f 16 -n 2 -w 1 --reproducible --digest "${codecs[@]}" --codec bf16 --codec mxfp8)
bench digest.threads.4.shm.device 20 allreduce "${same[@]}" "${registered[@]}"
step digest.threads.4.shm.host 20 "$build/perf/allreduce_bench" "${same[@]}" --json "$out/bench.digest.threads.4.shm.host.json"

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null)
for tool in memcheck synccheck initcheck; do
  if [ -n "$sanitizer" ]; then
    step "$tool" 50 env INCCL_TEST_SEED=1 INCCL_TEST_ELEMENTS=0 "$sanitizer" --tool "$tool" --error-exitcode 9 \
      "$build/tests/cuda_tests" --gtest_filter='*.ScaleCodes:*.EveryWidth*:*.Casts:*.SomeReductions'
  else
    skipped "$tool" "compute-sanitizer is not installed"
  fi
done

# Kernels that are loaded while a call waits are a hang (docs/cuda.md): first as PyTorch is, then with all of them loaded.
library=$(ls "$build"/lib/libinccl.so.0 "$build"/src/libinccl.so.0 2> /dev/null | head -n 1)
if python3 -c 'import torch; exit(not torch.cuda.is_available())' 2> /dev/null; then
  for loading in EAGER LAZY; do
    step ddp.$loading 60 env CUDA_MODULE_LOADING=$loading INCCL_LIBRARY="$library" \
      python3 tests/cuda/ddp_step.py none hbi:bits=6
  done
else
  skipped ddp "python3 has no PyTorch with a GPU"
fi

for ranks in 4 2 8; do
  bench sweep.threads.$ranks.shm.small 30 allreduce "${registered[@]}" --threads $ranks "${small[@]}" --limit "${codecs[@]}"
  bench sweep.threads.$ranks.shm.large 40 allreduce "${registered[@]}" --threads $ranks "${large[@]}" --limit "${codecs[@]}"
done
bench alltoall.threads.4.shm 10 alltoall --threads 4 -b 1M -e 64M -f 8 -n 10 --row-seconds 0.25 --limit
bench sendrecv.threads.2.shm 10 sendrecv --threads 2 -b 1M -e 64M -f 8 -n 10 --row-seconds 0.25 --limit

# A line of the report says why NCCL was left out.
if [ -z "${INCCL_NCCL_LIBRARY:-}" ]; then
  found=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")' 2> /dev/null) &&
    export INCCL_NCCL_LIBRARY=$found
fi
for ranks in 2 4 8; do
  bench nccl.processes.$ranks.shm 40 allreduce --ranks $ranks -b 64K -e 256M -f 16 -n 20 -w 3 --row-seconds 0.5 \
    --baseline nccl --codec none --codec hbi:bits=6
  if grep -q '^# NCCL left out' "$out/nccl.processes.$ranks.shm.log" 2> /dev/null; then break; fi
done

for link in 100 10; do
  for ranks in 4 2 8; do
    bench sweep.threads.$ranks.$link.small 25 allreduce --threads $ranks "${small[@]}" --link-gbps $link "${codecs[@]}"
    bench sweep.threads.$ranks.$link.large 45 allreduce --threads $ranks "${large[@]}" --link-gbps $link "${codecs[@]}"
  done
done
bench goals.processes.4.shm 20 allreduce "${registered[@]}" --ranks 4 -b 256M -e 256M -n 10 -w 2 --row-seconds 2 -c 0 --limit "${codecs[@]}"
finish
