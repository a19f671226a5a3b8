// SPDX-License-Identifier: Apache-2.0
#include "world/limits.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace inccl::test {

double SlackSeconds() {
  double load = 0;
  if (getloadavg(&load, 1) != 1) load = 0;
  const auto processors = static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
  return 2.0 * kSlowness * std::max(1.0, load / processors);
}

}  // namespace inccl::test
