// SPDX-License-Identifier: Apache-2.0
//
// The main function of every test program. A program holds the tests of one folder;
// `--source=errors_test.cc` runs those of one of its files, as ctest does: a process for each file.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

namespace {

constexpr std::string_view kFlag = "--source=";

constexpr int kSkipped = 77;

// What sanitizers leave to release, because they see the same code in the tests that remain; names
// that start so. INCCL_TEST_LONG runs them here, too.
[[maybe_unused]] constexpr std::string_view kRepeating[] = {
    // At length what others do once.
    "Algorithms/CollectivesTest.OverEveryTransport/",
    "Algorithms/RegisteredOnHostsTest.AreUsedInPlaceInsideAHost/1",
    "CodecTeam.IdentityGivesTheBitsOfOneThread",
    "CompressedTest.Groups",
    "CompressedTest.SameBytesEveryWay",
    "DeathTest.SurvivorsLearnWhoDied",
    "ExecutorSimTest.DroppedPayloadsNeverBecomeAResult",
    "ExecutorSimTest.MoreReadersThanOneStepWritesTo",
    "ExecutorSimTest.RevokedMemoryNeverBecomesAResult",
    "FailureTest.KilledAtAnyMoment",
    "HostSums.AllReduceIsThreeCollectives",
    "HostsTest.CompressedResultsHaveTheBitsOfOneHost",
    "HostsTest.EveryAlgorithm",
    "MismatchTest.ProcessesAllLearnWhoDiffers",
    "Over/VerbsCollectivesTest.RegisteredMemoryIsSentInPlaceWithTheSameBits/devices_at_once",
    "RegistrationTest.ManyBuffersKeepTheirPlaces",
    "RepeatsTest.EveryOrderOfKindsHasExactResults",
    "SegmentsTest.AsProcesses",
    "SelectTest.LongVectorsOnEveryInstructionSet",
    // Waits and computes, with little of the library.
    "InterfaceTest.AnAddressThatBothHostsHaveIsNamedWithTheVariable",
    "NetworkTest.ASilentPartitionFailsOnBothSides",
    "HbiPromises.BitsOnTheWireForEveryNumberOfRanks",
    "ProcessWorldTest.SeesWhatIsLeftBehind",
    "SlotMemoryOnHostsTest.NoRankHasMoreLanesThanTheQuickCheckAssumes",
    // Proofs, which need no sanitizer.
    "LaneOrderTest.",
    "RunMutants.",
    "Schedules/",
    "SideSchedule.",
};

// Also rows that wait for a limit of time, and sweeps and faults over transports beside shared
// memory and TCP, which differ in what the conformance suite covers.
bool IsLeftOut(std::string_view name) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  if (std::getenv("INCCL_TEST_LONG") != nullptr) return false;
  for (const char* row : {".Row04_", ".Row05_", ".Row07_", ".Row08_", ".Row12_"}) {
    if (name.find(row) != name.npos) return true;
  }
  for (const std::string_view repeating : kRepeating) {
    if (name.starts_with(repeating)) return true;
  }
  return name.find(".Row") != name.npos && (name.ends_with("/ucx") || name.ends_with("/verbs"));
#else
  static_cast<void>(name);
  return false;
#endif
}

std::string_view FileName(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// A filter that lets through the tests that `source` defines; empty if there are none, or if one of
// them has the name of another file's. `left_out`: all of them are left out.
std::string TestsOf(std::string_view source, bool* left_out) {
  std::string filter;
  std::set<std::string> others;
  std::set<std::string> own;
  const auto& unit_test = *testing::UnitTest::GetInstance();
  for (int i = 0; i < unit_test.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *unit_test.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      const std::string name = std::string(suite.name()) + "." + test.name();
      const bool matches = FileName(test.file()) == source;
      if (!(matches ? own : others).insert(name).second) {
        std::fprintf(stderr, "two tests are named %s\n", name.c_str());
        return "";
      }
      if (matches && !IsLeftOut(name)) filter += name + ":";
    }
  }
  for (const std::string& name : own) {
    if (others.count(name) != 0) {
      std::fprintf(stderr, "two files have a test named %s\n", name.c_str());
      return "";
    }
  }
  if (own.empty()) {
    std::fprintf(stderr, "no test of this program is defined in \"%.*s\"\n",
                 static_cast<int>(source.size()), source.data());
  }
  *left_out = !own.empty() && filter.empty();
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  setenv("INCCL_SOCKET_IFNAME", "lo", /*overwrite=*/0);  // tests do not listen to other machines
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.substr(0, kFlag.size()) != kFlag) {
      std::fprintf(stderr, "unknown argument \"%s\"\n", argv[i]);
      return 2;
    }
    bool left_out = false;
    const std::string filter = TestsOf(argument.substr(kFlag.size()), &left_out);
    if (left_out) {
      std::puts("skipped: all of these tests are left to INCCL_TEST_LONG=1");
      return kSkipped;
    }
    if (filter.empty()) return 2;
    GTEST_FLAG_SET(filter, filter);
  }
  return RUN_ALL_TESTS();
}
