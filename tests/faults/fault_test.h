// SPDX-License-Identifier: Apache-2.0
//
// What the tests of docs/reliability.md's scorecard share. A test says which rows and transports it
// shows something of (ForRow), and after every one of them the process holds what it held before.
#ifndef INCCL_TESTS_FAULTS_FAULT_TEST_H_
#define INCCL_TESTS_FAULTS_FAULT_TEST_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "api/world.h"
#include "inccl/ccl.h"
#include "world/baseline.h"
#include "world/clock.h"
#include "world/error_format.h"
#include "world/limits.h"
#include "world/process_world.h"

namespace inccl::test {

// Transports between processes that the sweeps run over. scripts/reliability_report.py reads the
// properties that ForRow records.
inline const std::vector<const char*> kTransportFactories = TransportSelections();

// Time limits of the library in the tests that wait for them.
inline const double kInitSeconds = 1.0 * Slowness();
inline const double kOpSeconds = 2.0 * Slowness();
inline const double kDeadSeconds = 1.0 * Slowness();
inline constexpr double kLocalDeathSeconds = 1.0;  // to learn of a death on one host

// All others get so much that no busy machine reaches it. By environment, so that they hold for the
// maker of an id as well.
struct FaultLimits {
  double init_seconds = 30.0 * Slowness();
  double op_seconds = 30.0 * Slowness();
  double dead_seconds = 30.0 * Slowness();
};
inline const FaultLimits kShortLimits = {kInitSeconds, kOpSeconds, kDeadSeconds};

class FaultTest : public ::testing::TestWithParam<const char*> {
 protected:
  explicit FaultTest(const FaultLimits& limits = {})
      : init_ms_(Milliseconds(limits.init_seconds)),
        op_ms_(Milliseconds(limits.op_seconds)),
        dead_ms_(Milliseconds(limits.dead_seconds)),
        limits_({{"INCCL_INIT_TIMEOUT_MS", init_ms_.c_str()},
                 {"INCCL_OP_TIMEOUT_MS", op_ms_.c_str()},
                 {"INCCL_DEAD_TIMEOUT_MS", dead_ms_.c_str()}}) {}

  void SetUp() override { baseline_ = std::make_unique<Baseline>(); }
  void TearDown() override { baseline_.reset(); }

  // `rows`: "9" or "11,12"; `transport`: one or several, comma-separated.
  static void ForRow(const std::string& rows, const std::string& transport) {
    RecordProperty("row", rows);
    RecordProperty("transport", transport);
  }

  static std::string Milliseconds(double seconds) {
    return std::to_string(static_cast<int>(seconds * 1000));
  }

 private:
  const std::string init_ms_, op_ms_, dead_ms_;
  const ScopedEnv limits_;
  std::unique_ptr<Baseline> baseline_;
};

// For tests that have one body for all transports between processes.
class TransportFaultTest : public FaultTest {
 protected:
  explicit TransportFaultTest(const FaultLimits& limits = {})
      : FaultTest(limits), transport_({{"INCCL_TRANSPORT", GetParam()}}) {}
  static void ForRow(const std::string& rows) { FaultTest::ForRow(rows, GetParam()); }

 private:
  const ScopedEnv transport_;
};

// A watchdog that bites after kOpSeconds.
class ShortWatchdog {
 private:
  const ScopedEnv limit_{
      {{"INCCL_OP_TIMEOUT_MS", std::to_string(static_cast<int>(kOpSeconds * 1000)).c_str()}}};
};

inline std::string TransportName(const ::testing::TestParamInfo<const char*>& info) {
  return info.param;
}

#define INSTANTIATE_OVER_TRANSPORTS(suite) \
  INSTANTIATE_TEST_SUITE_P(Over, suite, ::testing::ValuesIn(kTransportFactories), TransportName)
// What goes through the points of shared memory, or counts its calls of the system.
#define INSTANTIATE_OVER_SHM(suite) \
  INSTANTIATE_TEST_SUITE_P(Over, suite, ::testing::Values("shm"), TransportName)

}  // namespace inccl::test

#endif  // INCCL_TESTS_FAULTS_FAULT_TEST_H_
