// SPDX-License-Identifier: Apache-2.0
#include "world/limits.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace inccl::test {
namespace {

// Those this process may use: a part of the machine's, or of their time.
double Processors() {
  auto processors = static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    processors = std::min(processors, static_cast<double>(CPU_COUNT(&allowed)));
  }
  std::FILE* const file = std::fopen("/sys/fs/cgroup/cpu.max", "r");
  if (file != nullptr) {
    double quota = 0, period = 0;  // "max" is no number
    if (std::fscanf(file, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0) {
      processors = std::min(processors, quota / period);
    }
    std::fclose(file);
  }
  return processors;
}

}  // namespace

double Busy() {
  double load = 0;
  if (getloadavg(&load, 1) != 1) load = 0;
  return std::max(1.0, load / Processors());
}

double Slowness() {
  static const double machine = [] {
    const char* const text = std::getenv("INCCL_TEST_SLOWNESS");
    return text == nullptr ? 1.0 : std::max(1.0, std::atof(text));
  }();
  return kSlowness * machine;
}

size_t WorldsAtOnce(size_t most) {
  const double fewer = static_cast<double>(most) * kSlowness / Slowness();
  return std::max<size_t>(2, static_cast<size_t>(fewer));
}

double SlackSeconds() { return kSlackSeconds * Slowness() / kSlowness * Busy(); }

}  // namespace inccl::test
