#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds a release and runs every test. Goes on after a failure; exit status 0 if all is well.
#
# usage: tools/check.sh [--all | --long] [--no-install] [-j JOBS]
#   --all          also: PyTorch, in .venv, for its tests, which counts as a failure if it cannot be installed; RDMA in a
#                  virtual machine, where one runs; the tests under the address and undefined-behaviour
#                  sanitizers, those with threads under the thread sanitizer, which is clang's; lints of what the last
#                  30 commits have changed
#   --long         all that, the tests that the others leave out, lints of everything, the tests seen by clang, PyTorch's
#                  own tests of its backends, the codecs' tests for 64-bit ARM in an emulator, every fuzz target for a
#                  minute, edits of the sources that tests must notice, stress tests of 10^5 operations on one host and on
#                  four, 256 ranks over TCP, 600 rounds of ranks that die and are cut off (5 minutes or more;
#                  INCCL_TEST_ROUNDS), 10 minutes in which processors are scarce, and the commands of README.md,
#                  docs/install.md and docs/python.md on a bare Debian
#   --no-install   installs nothing
#   -j JOBS        parallel compilations (default: the cores); twice as many tests run at a time, for most of them wait
#
# A step that fails outside ctest (a build, the format, the lints) counts as one failure. The last line of output is
# "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

all=0 long=0 install=1 jobs=$(nproc)
while [ $# -gt 0 ]; do
  case "$1" in
    --all) all=1 ;;
    --long) all=1 long=1 ;;
    --no-install) install=0 ;;
    -j) shift; jobs=${1:?} ;;
    *) sed -n 's/^# \{0,1\}//; 5,16p' "$0" >&2; exit 2 ;;
  esac
  shift
done
test_jobs=$((2 * jobs))

# Open MPI: as root, and with more ranks than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1
export UBSAN_OPTIONS=print_stacktrace=1
# Randomized tests draw the same numbers in each run, so that a change is judged by itself; with --long they draw new ones.
if [ "$long" = 1 ]; then
  export INCCL_TEST_LONG=1  # sanitized programs run all of their tests
else
  export INCCL_TEST_SEED=${INCCL_TEST_SEED:-1}
fi

passed=0 failed=0 summary=() failing_logs=()
logs=build/check
mkdir -p "$logs"

# report BEGIN NAME TEXT: a line of the summary, with the minutes since BEGIN.
report() {
  local seconds=$((SECONDS - $1))
  summary+=("$(printf '%3d min %2d s  %s: %s' $((seconds / 60)) $((seconds % 60)) "$2" "$3")")
}

# step NAME COMMAND...: runs it with its output in a log, whose end is shown if it fails.
step() {
  local name=$1 log=$logs/${1// /_}.log begin=$SECONDS
  shift
  echo "== $name"
  if "$@" > "$log" 2>&1; then
    report "$begin" "$name" ok
  else
    tail -n 60 "$log"
    report "$begin" "$name" "FAILED, $log"
    failed=$((failed + 1))
    return 1
  fi
}

configure_and_build() {
  # Of the GPUs, one architecture: packages have all of them.
  cmake --preset "$1" -DINCCL_CUDA_ARCHITECTURES=90 && cmake --build --preset "$1" -j "$jobs"
}

# test_preset NAME: ctest of a preset; adds to the totals what its summary line says. Of what failing tests print, the
# cases that went well are in the log only.
test_preset() {
  local log=$logs/test_$1.log begin=$SECONDS run=() bad total skipped again
  # Thread sanitizers of gcc 12 and clang 14 do not know kernels with much address randomization.
  if [ "$1" = tsan ] && setarch -R true 2> /dev/null; then run=(setarch -R); fi
  echo "== test $1"
  "${run[@]}" ctest --preset "$1" -j "$test_jobs" 2>&1 | tee "$log" |
    grep -Ev '^ *Start |^\[( RUN      |       OK )\] '
  read -r bad total < <(sed -n 's/^.*% tests passed, \([0-9]*\) tests\{0,1\} failed out of \([0-9]*\)$/\1 \2/p' "$log")
  if [ -z "${total:-}" ]; then
    report "$begin" "test $1" "FAILED, no result, $log"
    failed=$((failed + 1))
  else
    skipped=$(grep -c '\*\*\*Skipped' "$log")
    passed=$((passed + total - bad - skipped)) failed=$((failed + bad))
    [ "$bad" -eq 0 ] || failing_logs+=("$log")
    again=$(grep -c '^== the machine stood still' "build/$1/Testing/Temporary/LastTest.log")
    report "$begin" "test $1" "$((total - bad - skipped)) of $total passed, $skipped skipped, $again run again after a standstill"
  fi
}

sources() {
  find src include tests perf tools examples -type f \( -name '*.h' -o -name '*.hpp' -o -name '*.cc' -o -name '*.c' -o -name '*.cu' \) "$@"
}
check_format() { sources -print0 | xargs -0 clang-format-14 --dry-run --Werror; }
# Other steps show the sources to clang; this shows it the tests, without headers that were compiled before.
clang_tests() {
  configure_lint && python3 - build/lint/compile_commands.json "$PWD/tests/" << 'END' | xargs -0 -P "$jobs" -I {} sh -c {}
import json, re, sys
for entry in json.load(open(sys.argv[1])):
    if entry["file"].startswith(sys.argv[2]):
        command = re.sub(r"^(\S*ccache )?\S+ ", "clang++-14 ", entry["command"])
        command = re.sub(r" -o \S+ -c ", " -fsyntax-only ", command)
        command = re.sub(r" -Winvalid-pch -include \S+", "", command)
        print("cd " + entry["directory"] + " && " + command, end="\0")
END
}
# clang-tidy sees each source by itself, not as units.
configure_lint() { cmake --preset release -B build/lint -DCMAKE_UNITY_BUILD=OFF -DINCCL_CUDA=OFF > /dev/null; }
lint() { configure_lint && run-clang-tidy-14 -quiet -j "$jobs" -p build/lint "$1"; }
# What the last 30 commits have changed below src, newest first and at most 30 sources, so that a commit that moves many
# takes no longer; a header is seen in a source that includes it.
lint_changed() {
  local file including built files=()
  configure_lint || return
  built=$(sed -n 's/^  "file": ".*\/\(src\/.*\)",\{0,1\}$/\1/p' build/lint/compile_commands.json)
  [ -n "$built" ] || return
  while read -r file; do
    [ -f "$file" ] || continue
    case $file in
      *.cc) including=$file ;;
      *.h) including=$(git grep -lF "#include \"${file#src/}\"" -- 'src/*.cc' | grep -xFf <(echo "$built") | head -n 1) ;;
      *) continue ;;
    esac
    # This build leaves CUDA out, whose headers a machine may lack.
    [ -z "$including" ] || ! grep -qxF "$including" <<< "$built" || files+=("$including")
  done < <(git log -n 30 --name-only --format= --diff-filter=d -- src | awk '!seen[$0]++')
  [ ${#files[@]} -gt 0 ] || { echo "nothing has changed"; return 0; }
  printf '%s\n' "${files[@]}" | awk '!seen[$0]++' | head -n 30 | tee /dev/stderr | xargs -P "$jobs" -n 4 clang-tidy-14 -quiet -p build/lint
}
# PyTorch, in .venv, for the tests of inccl.torch. --all requires it where it may install it; else they are skipped.
python_environment() {
  if [ "$all" = 1 ] && [ "$install" = 1 ]; then
    step "Python environment" timeout 900 scripts/python_environment.sh
  elif ! .venv/bin/python -c "import torch" 2> /dev/null; then
    report "$SECONDS" "Python environment" "skipped, and with it the tests of PyTorch, unless another Python has it"
  fi
}
# The transport verbs on soft RoCE, in a virtual machine; skipped where this machine cannot run it.
soft_roce() {
  local log=$logs/soft_RoCE.log begin=$SECONDS rc=0
  echo "== soft RoCE"
  tests/rdma/soft_roce.sh build/release > "$log" 2>&1 || rc=$?
  case $rc in
    0) report "$begin" "soft RoCE" ok; passed=$((passed + 1)) ;;
    77) report "$begin" "soft RoCE" "skipped, $(tail -n 1 "$log")" ;;
    *) tail -n 60 "$log"; report "$begin" "soft RoCE" "FAILED, $log"; failed=$((failed + 1)) ;;
  esac
}
# Runs of programs and whole benchmarks that the other tests repeat in small.
long_tests() { ctest --test-dir build/release -L '^long$' -j "$jobs" --output-on-failure; }
pytorch_tests() {
  local rc=77
  if [ -x .venv/bin/python ]; then
    rc=0
    INCCL_LIBRARY=$PWD/build/release/src/libinccl.so INCCL_CONF_FILE=/dev/null .venv/bin/python scripts/pytorch_tests.py || rc=$?
  fi
  [ $rc -eq 0 ] || { [ $rc -eq 77 ] && [ "$install" = 0 ]; }
}
scale() { INCCL_TEST_RANKS=256 build/release/tests/integration_tests --source=scale_test.cc; }
load() { INCCL_TEST_OPERATIONS=50000 build/release/tests/integration_tests --gtest_filter='LoadTest.Mixed*'; }
scarce() { INCCL_TEST_SECONDS=600 build/release/tests/integration_tests --gtest_filter='LoadTest.NoRank*'; }
bounds() { INCCL_TEST_OPERATIONS=5000 build/release/tests/integration_tests --source=bounds_fuzz_test.cc; }
churn() { INCCL_TEST_ROUNDS=${INCCL_TEST_ROUNDS:-600} build/release/tests/faults_tests --source=churn_test.cc; }
stress() { INCCL_TEST_OPERATIONS=50000 build/release/tests/api_tests --source=stress_test.cc; }

if [ "$install" = 1 ]; then
  [ "$long" = 0 ] && step "install packages" scripts/install_packages.sh
  [ "$long" = 1 ] && step "install packages" scripts/install_packages.sh --long
  # Without them the tests on soft RoCE are skipped, and say why.
  [ "$all" = 1 ] && timeout 300 scripts/install_packages.sh --rdma
fi
command -v ccache > /dev/null && ccache --zero-stats > /dev/null
step "format" check_format
python_environment
step "build release" configure_and_build release && test_preset release &&
  step "scorecard" scripts/reliability_report.py --check build/release/results
if [ "$all" = 1 ]; then
  soft_roce
  for preset in asan tsan; do
    step "build $preset" configure_and_build "$preset" && test_preset "$preset"
  done
  [ "$long" = 1 ] || step "lint" lint_changed
fi
if [ "$long" = 1 ]; then
  step "long tests" long_tests
  step "lint" lint "^$PWD/(src|perf|tools)/.*\.cc$"
  step "tests with clang" clang_tests
  step "tests of PyTorch" pytorch_tests
  step "64-bit ARM" scripts/check_aarch64.sh -j "$jobs"
  step "format edits" scripts/mutate_sources.py --format -j "$jobs"
  step "source edits" scripts/mutate_sources.py --sample 12 -j "$jobs"
  step "stress" stress
  step "error bounds" bounds
  step "256 ranks" scale
  step "load" load
  step "bare Debian" tests/package/bare_debian.py
  step "churn" churn
  step "scarce processors" scarce
  step "build fuzz" configure_and_build fuzz && test_preset fuzz
fi

# At the end, where a log that is cut short still has it.
for log in "${failing_logs[@]}"; do
  echo "== failed, of $log"
  scripts/failed_tests.py "$log"
done
echo "== summary, $((SECONDS / 60)) min $((SECONDS % 60)) s"
printf '%s\n' "${summary[@]}"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
