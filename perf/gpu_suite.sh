#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, on a machine with one and without a network, in under nine minutes, from a tree that is
# built here or brought along: the tests of the kernels, the same under compute-sanitizer, their throughput beside the
# device's copy speed. Results as JSON and logs.
#
# usage: perf/gpu_suite.sh [BUILD_DIR [OUTPUT_DIR]]        (build/release, BUILD_DIR/gpu)
# Exit status: 0 if all that could run is well; 1 if something failed; 4 where there is no GPU.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
build=${1:-build/release}
out=${2:-$build/gpu}
mkdir -p "$out" || exit 1
for program in tests/cuda_kernels_test perf/cuda_kernel_bench; do
  if [ ! -x "$build/$program" ]; then
    echo "$0: no $build/$program: configure with INCCL_CUDA=ON, and build cuda_kernels_test and cuda_kernel_bench" >&2
    exit 1
  fi
done
begin=$SECONDS failed=0 steps=()

# step NAME SECONDS COMMAND...: its output in a log, its end shown if it fails or runs out of time.
step() {
  local name=$1 limit=$2 start=$SECONDS log=$out/$1.log rc
  shift 2
  echo "== $name"
  timeout -k 10 "$limit" "$@" > "$log" 2>&1
  rc=$?
  if [ "$rc" -ne 0 ]; then
    tail -n 40 "$log"
    failed=1
  fi
  steps+=("{\"step\": \"$name\", \"exit_status\": $rc, \"seconds\": $((SECONDS - start))}")
  return "$rc"
}
skipped() {
  echo "== $1: not run, $2"
  steps+=("{\"step\": \"$1\", \"not_run\": \"$2\"}")
}

"$build/perf/cuda_kernel_bench" --elements 1048576 --rounds 1 > "$out/device.log" 2>&1
if [ $? -eq 4 ]; then
  cat "$out/device.log"
  exit 4
fi

# 10^8 elements, byte for byte.
step tests 180 env INCCL_TEST_ELEMENTS=100000000 GTEST_OUTPUT="json:$out/tests.json" "$build/tests/cuda_kernels_test"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2> /dev/null)
for tool in memcheck racecheck; do
  if [ -n "$sanitizer" ]; then
    step "$tool" 100 env INCCL_TEST_SEED=1 INCCL_TEST_ELEMENTS=0 "$sanitizer" --tool "$tool" --error-exitcode 9 \
      "$build/tests/cuda_kernels_test" --gtest_filter='*.ScaleCodes:*.EveryWidth*:*.Casts'
  else
    skipped "$tool" "compute-sanitizer is not installed"
  fi
done
step kernels 120 "$build/perf/cuda_kernel_bench" --json "$out/kernels.json" && cat "$out/kernels.log"

printf -v joined ',\n  %s' "${steps[@]}"
printf '{"seconds": %d, "failed": %s, "steps": [%s\n]}\n' "$((SECONDS - begin))" \
  "$([ "$failed" -eq 0 ] && echo false || echo true)" "${joined:1}" > "$out/suite.json"
cat "$out/suite.json"
exit "$failed"
