#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints which functions of the library a warm compressed all-reduce enters, in order, up to the first slot that it
publishes, and how deep they are. A newcomer reads these files to follow a call, so their number is a measure of the code.

usage: scripts/walk_of_a_call.py [--all] [BUILD_DIR]
  --all        every function that is entered, not only the number of them
  BUILD_DIR    where the library is built with instrumented functions (default: build/walk; minutes at the first time)

Two ranks, threads of one process, sum 64 K elements over shared memory with the default codec. Counted are functions of
src/ that the compiler has not inlined at -O1, on rank 0, in the sixth call.
"""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
FLAGS = "-O1 -g1 -finstrument-functions -finstrument-functions-exclude-file-list=/usr/,hwy/,/kernels/"
PROGRAM = r"""
#include <inccl/ccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <pthread.h>

enum { kMost = 1 << 16, kCount = 1 << 16, kCalls = 6 };
static __thread int tracing;
static struct { void* function; int depth; } entered[kMost];
static int count;
static __thread int depth;

__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void* function, void* site) {
  (void)site;
  if (!tracing) return;
  if (count < kMost) entered[count].function = function, entered[count++].depth = depth;
  ++depth;
}
__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void* function, void* site) {
  (void)function, (void)site;
  if (tracing) --depth;
}

static ccl_comm_t comms[2];
__attribute__((no_instrument_function)) static void* Rank(void* number) {
  const int rank = (int)(size_t)number;
  float* data = calloc(kCount, sizeof *data);
  for (int i = 0; i < kCount; ++i) data[i] = (float)(i % 7) - 3;
  for (int call = 0; call < kCalls; ++call) {
    tracing = rank == 0 && call == kCalls - 1;
    if (ccl_allreduce_compressed(data, data, kCount, CCL_FLOAT32, CCL_SUM, NULL, comms[rank], NULL) != CCL_SUCCESS) abort();
    tracing = 0;
  }
  free(data);
  return NULL;
}

int main(void) {
  if (ccl_comm_init_all(comms, 2, NULL) != CCL_SUCCESS) return 1;
  pthread_t thread;
  pthread_create(&thread, NULL, Rank, (void*)1);
  Rank((void*)0);
  pthread_join(thread, NULL);
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[4096];
  unsigned long base = 0;
  while (base == 0 && fgets(line, sizeof line, maps) != NULL) {
    unsigned long begin, offset;
    char name[4096] = "";
    if (sscanf(line, "%lx-%*x %*s %lx %*s %*s %4095s", &begin, &offset, name) == 3 && offset == 0) {
      for (char* c = name; *c != 0; ++c) {
        if (c[0] == 'l' && c[1] == 'i' && c[2] == 'b' && c[3] == 'i' && c[4] == 'n' && c[5] == 'c') base = begin;
      }
    }
  }
  for (int i = 0; i < count; ++i) printf("%d %lx\n", entered[i].depth, (unsigned long)entered[i].function - base);
  fflush(stdout);
  _Exit(0);
}
"""


def build(folder):
    flags = [f"-DCMAKE_CXX_FLAGS={FLAGS}", "-DCMAKE_BUILD_TYPE=None", "-DINCCL_CUDA=OFF", "-DINCCL_BUILD_PERF=OFF",
             "-DINCCL_BUILD_TOOLS=OFF", "-DINCCL_INSTALL=OFF"]
    for command in (["cmake", "--preset", "install", "-B", folder, *flags], ["cmake", "--build", folder, "--target", "inccl"]):
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def trace(folder):
    """(depth, function, file) of each function of src/ that the call enters."""
    program = folder / "walk"
    (folder / "walk.c").write_text(PROGRAM)
    subprocess.run(["cc", "-o", program, folder / "walk.c", f"-I{ROOT}/include", f"-L{folder}/src", f"-Wl,-rpath,{folder}/src",
                    "-Wl,--export-dynamic", "-linccl", "-lpthread"], check=True)
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split("\n")
    entered = [line.split() for line in lines if line]
    names = subprocess.run(["addr2line", "-f", "-C", "-e", folder / "src/libinccl.so"], check=True, capture_output=True, text=True,
                           input="\n".join(address for _, address in entered)).stdout.split("\n")
    for (depth, _), name, place in zip(entered, names[0::2], names[1::2]):
        path = pathlib.Path(place.split(":")[0]).resolve()
        if path.is_relative_to(ROOT / "src"):
            yield int(depth), name.split("(")[0], path.relative_to(ROOT / "src")


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--all"]
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        sys.exit(__doc__)
    folder = pathlib.Path(arguments[0] if arguments else ROOT / "build/walk").resolve()
    build(folder)
    entered = list(trace(folder))
    first = next((i for i, (_, name, _) in enumerate(entered) if name.endswith("::Publish")), None)
    if first is None:
        sys.exit("no slot was published")
    if "--all" in sys.argv:
        for depth, name, path in entered[:first + 1]:
            print("  " * depth + f"{name}  {path}")
    stack = {}
    for depth, name, path in entered[:first + 1]:
        stack = {d: f for d, f in stack.items() if d < depth} | {depth: (name, path)}
    # Of the stack, what a reader steps into: no wrappers of headers, no lambda beside the function that has it.
    frames = []
    for depth in sorted(stack):
        name, path = stack[depth]
        if path.suffix == ".cc" and (not frames or frames[-1] != (name, path)):
            frames.append((name, path))
    print("frames at the first slot:")
    for name, path in frames:
        print(f"  {name}  {path}")
    for title, part in (("to the first slot", entered[:first + 1]), ("whole call", entered)):
        sources = {path for _, _, path in part if path.suffix == ".cc"}
        named = {(name, path) for _, name, path in part if path.suffix == ".cc"}
        print(f"{title}: {len(named)} functions of {len(sources)} .cc files, "
              f"{len({path for _, _, path in part}) - len(sources)} headers")
    print(f"frames: {len(frames)}")


if __name__ == "__main__":
    main()
