// SPDX-License-Identifier: Apache-2.0
//
// Creation of communicators in bad company: ranks that never come, that come twice, that are
// configured differently, and a maker of the id that does not live to see the end.
#include <fmt/format.h>

#include <cstring>
#include <utility>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "faults/fault_test.h"

namespace inccl::test {
namespace {

class InitTest : public TransportFaultTest {
 protected:
  InitTest() : TransportFaultTest(kShortLimits) {}
};

ccl_result_t Sum(ccl_comm_t comm, int nranks) {
  float x = 1;
  const ccl_result_t result = ccl_allreduce(&x, &x, 1, CCL_FLOAT32, CCL_SUM, comm, nullptr);
  EXPECT_TRUE(result != CCL_SUCCESS || x == static_cast<float>(nranks)) << x;
  return result;
}

TEST_P(InitTest, Row08_MissingRanksAreListed) {
  ForRow("8");
  ProcessWorld world({.nranks = 4}, [](const Side& side) {
    if (side.rank() == 1 || side.rank() == 3) return 0;
    ccl_comm_t comm = nullptr;
    return side.Init(&comm, CCL_CONFIG_INIT) == CCL_TIMEOUT && comm == nullptr ? 0 : 11;
  });
  world.ExpectAllExited();
  for (const int rank : {0, 2}) {
    Report& report = world.report(rank);
    EXPECT_TRUE(Matches(report.text, "ranks 1, 3 of 4 did not arrive within [0-9]+ ms"))
        << report.text;
    EXPECT_EQ(MissingFromError(report.text, CCL_TIMEOUT,
                               {.rank = rank, .nranks = 4, .during_init = true}),
              "");
    EXPECT_GT(report.seconds, 0.8 * kInitSeconds);
    EXPECT_LT(report.seconds, kInitSeconds + SlackSeconds());
  }
}

// The launcher's way: the meeting point is rank 0's.
void ExpectLauncherTimeout(int absent, const std::string& pattern) {
  static int jobs = 0;
  const std::string job = fmt::format("faults {} {}", getpid(), ++jobs);
  ProcessWorld world({.nranks = 3}, [&](const Side& side) {
    if (side.rank() == absent) return 0;
    setenv("INCCL_RANK", std::to_string(side.rank()).c_str(), 1);
    setenv("INCCL_SIZE", "3", 1);
    setenv("INCCL_JOB", job.c_str(), 1);
    ccl_comm_t comm = nullptr;
    const double start = Seconds();
    side.mine().result = ccl_comm_init_env(&comm, nullptr);
    side.mine().seconds = Seconds() - start;
    side.mine().SetText(ccl_get_last_error(nullptr));
    return comm == nullptr ? 0 : 11;
  });
  world.ExpectAllExited();
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == absent) continue;
    Report& report = world.report(rank);
    EXPECT_EQ(report.result, CCL_TIMEOUT) << report.text;
    EXPECT_TRUE(Matches(report.text, pattern)) << report.text;
    EXPECT_LT(report.seconds, kInitSeconds + SlackSeconds());
  }
}

TEST_P(InitTest, Row08_MissingRanksOfALaunchersJob) {
  ForRow("8");
  ExpectLauncherTimeout(2, "rank 2 of 3 did not arrive");
  ExpectLauncherTimeout(0, "has rank 0 been started");
}

TEST_P(InitTest, Row10_TheMakerOfTheIdDiesAfterInit) {
  ForRow("10");
  ProcessWorld maker({.nranks = 1}, [](const Side& side) {
    const ccl_unique_id_t id = side.Id();
    std::memcpy(side.mine().text, &id, sizeof id);
    side.mine().stage = 1;
    while (true) pause();
    return 0;
  });
  ASSERT_TRUE(maker.side(0).Await(0, 1));
  ProcessWorld world({.nranks = 3, .id_maker = kOutside}, [](const Side& side) {
    ccl_comm_t comm = nullptr;
    EXPECT_EQ(side.Init(&comm, CCL_CONFIG_INIT), CCL_SUCCESS) << side.mine().text;
    side.mine().stage = 1;
    EXPECT_TRUE(side.Await(0, 2)) << "the maker is dead";
    for (int i = 0; i < 200; ++i) {
      if (Sum(comm, 3) != CCL_SUCCESS) return 11;
    }
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
  });
  ccl_unique_id_t id;
  std::memcpy(&id, maker.report(0).text, sizeof id);
  world.GiveId(id);
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(world.side(0).Await(rank, 1));
  maker.Kill(0, SIGKILL);
  maker.Wait();
  world.report(0).stage = 2;
  world.ExpectAllExited();
}

TEST_P(InitTest, Row14_OfTwoWithOneRankTheFirstWins) {
  ForRow("14");
  ProcessWorld world({.nranks = 3}, [](const Side& side) {
    const ccl_unique_id_t id = side.Id();
    // Rank 0 comes when one of the two has been turned away.
    while (side.rank() == 0 && side.of(1).stage + side.of(2).stage == 0) usleep(1000);
    ccl_comm_t comm = nullptr;
    const ccl_result_t result = ccl_comm_init_rank(&comm, 2, id, std::min(side.rank(), 1));
    side.mine().result = result;
    side.mine().SetText(ccl_get_last_error(nullptr));
    side.mine().stage = 1;
    if (result != CCL_SUCCESS) return comm == nullptr ? 0 : 11;
    EXPECT_EQ(Sum(comm, 2), CCL_SUCCESS) << ccl_get_last_error(comm);
    return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
  });
  world.ExpectAllExited();
  EXPECT_EQ(world.report(0).result, CCL_SUCCESS) << world.report(0).text;
  Report& second = world.report(world.report(1).result == CCL_SUCCESS ? 2 : 1);
  EXPECT_EQ(second.result, CCL_INVALID_USAGE) << second.text;
  for (const int pid : {world.pid(1), world.pid(2)}) {
    EXPECT_TRUE(Matches(second.text, fmt::format("1@[^ :]+:{}", pid))) << second.text;
  }
}

TEST_P(InitTest, Row14_DifferentNumbersOfRanks) {
  ForRow("14");
  ProcessWorld world({.nranks = 2}, [](const Side& side) {
    const ccl_unique_id_t id = side.Id();
    ccl_comm_t comm = nullptr;
    side.mine().result = ccl_comm_init_rank(&comm, side.rank() == 0 ? 2 : 3, id, side.rank());
    side.mine().SetText(ccl_get_last_error(nullptr));
    return comm == nullptr ? 0 : 11;
  });
  world.ExpectAllExited();
  for (int rank = 0; rank < 2; ++rank) {
    Report& report = world.report(rank);
    EXPECT_EQ(report.result, CCL_INVALID_USAGE) << report.text;
    EXPECT_TRUE(Matches(report.text, "2") && Matches(report.text, "3")) << report.text;
    EXPECT_TRUE(Matches(report.text, "0@[^ ]+") && Matches(report.text, "1@[^ ]+")) << report.text;
  }
}

TEST_P(InitTest, Row15_ConfigurationsThatDifferAreNamedWithBothValues) {
  ForRow("15");
  struct Setting {
    const char* name;
    const char* usual;
    const char* odd;
  };
  const std::vector<Setting> settings = {
      {"INCCL_ALGO", "ring", "tree"},          {"INCCL_CHANNELS", "2", "3"},
      {"INCCL_SLICE_BYTES", "65536", "32768"}, {"INCCL_SLOT_BYTES_MAX", "1048576", "2097152"},
      {"INCCL_REPRODUCIBLE", "0", "1"},        {"INCCL_CODEC", "hbi:bits=5", "hbi:bits=7"},
      {"INCCL_TEST_LINK_US", "3", "4"},        {"INCCL_DEAD_TIMEOUT_MS", "7001", "7002"},
  };
  RunWorlds(
      settings.size(), 4,
      [&](size_t i) {
        return std::make_unique<ProcessWorld>(WorldOptions{.nranks = 3}, [&, i](const Side& side) {
          setenv(settings[i].name, side.rank() == 1 ? settings[i].odd : settings[i].usual, 1);
          ccl_comm_t comm = nullptr;
          (void)side.Init(&comm, CCL_CONFIG_INIT);
          return comm == nullptr ? 0 : 11;
        });
      },
      [&](size_t i, ProcessWorld& world) {
        SCOPED_TRACE(settings[i].name);
        world.ExpectAllExited();
        for (int rank = 0; rank < 3; ++rank) {
          Report& report = world.report(rank);
          const std::string text = report.text;
          EXPECT_EQ(report.result, CCL_INVALID_USAGE) << text;
          EXPECT_LT(report.seconds, kInitSeconds + SlackSeconds());
          // Codecs are compared in their canonical form, where keys come before the number of bits.
          for (std::string value : {settings[i].odd, settings[i].usual}) {
            value.erase(0, value.find(':') + 1);
            EXPECT_NE(text.find(value), std::string::npos) << text;
          }
          EXPECT_TRUE(Matches(text, "1@[^ ]+") && Matches(text, "[02]@[^ ]+")) << text;
        }
      });
}

// Rank 1 stands for a library of another version: what it agrees to is made by hand.
TEST_P(InitTest, Row15_VersionsThatDifferAreNamed) {
  ForRow("15");
  ProcessWorld world({.nranks = 2}, [](const Side& side) {
    if (side.rank() == 0) {
      ccl_comm_t comm = nullptr;
      (void)side.Init(&comm, CCL_CONFIG_INIT);
      return comm == nullptr ? 0 : 11;
    }
    const ccl_unique_id_t id = side.Id();
    const Result<UniqueId> decoded =
        UniqueId::Decode(reinterpret_cast<const std::byte*>(id.internal));
    EXPECT_TRUE(decoded.ok());
    JoinOptions options;
    options.rank = 1;
    options.nranks = 2;
    options.deadline = SystemClock().Now() + 5 * kSecond;
    options.timeout_ms = 5000;
    options.agreement = "version=990001 algorithm=any";
    const Result<Mesh> mesh = JoinWithId(*decoded, options);
    side.mine().result = static_cast<int>(mesh.status().code());
    side.mine().SetText(mesh.status().message().c_str());
    return 0;
  });
  world.ExpectAllExited();
  for (int rank = 0; rank < 2; ++rank) {
    Report& report = world.report(rank);
    EXPECT_EQ(report.result, CCL_INVALID_USAGE) << report.text;
    EXPECT_TRUE(Matches(report.text, "version=990001")) << report.text;
    EXPECT_TRUE(Matches(report.text, fmt::format("version={}", CCL_VERSION_CODE))) << report.text;
  }
}

TEST_P(InitTest, Row15_MalformedAndUnknownVariables) {
  ForRow("15");
  // A rendezvous that no rank has come to waits for as long as its process lives.
  ProcessWorld world({.nranks = 1, .baseline = false}, [](const Side& side) {
    const std::pair<const char*, const char*> bad[] = {
        {"INCCL_CHANNELS", "many"},       {"INCCL_SLICE_BYTES", "1"},
        {"INCCL_ALGO", "ring,magic"},     {"INCCL_TRANSPORT", "pigeon"},
        {"INCCL_CODEC", "zip"},           {"INCCL_INIT_TIMEOUT_MS", "-1"},
        {"INCCL_DEAD_TIMEOUT_MS", "2"},   {"INCCL_TEST_SIMD", "mmx"},
        {"INCCL_TEST_FAULT", "nonsense"},
    };
    const ccl_unique_id_t id = side.Id();
    for (const auto& [name, value] : bad) {
      const ScopedEnv env({{name, value}});
      ccl_comm_t comm = nullptr;
      EXPECT_EQ(ccl_comm_init_rank(&comm, 1, id, 0), CCL_INVALID_ARGUMENT) << name;
      const std::string text = ccl_get_last_error(nullptr);
      EXPECT_NE(text.find(name), std::string::npos) << text;
      EXPECT_NE(text.find(value), std::string::npos) << text;
    }
    return 0;
  });
  world.ExpectAllExited();

  ProcessWorld warned({.nranks = 1}, [](const Side&) {
    const ScopedEnv env({{"INCCL_CHANELS", "2"}, {"INCCL_DEBUG", "WARN"}});
    for (int i = 0; i < 3; ++i) {
      ccl_comm_t comm = nullptr;
      EXPECT_EQ(ccl_comm_init_all(&comm, 1, nullptr), CCL_SUCCESS) << ccl_get_last_error(nullptr);
      ccl_comm_destroy(comm);
    }
    return 0;
  });
  const std::vector<RankEnd>& ends = warned.Wait();
  ASSERT_TRUE(ends[0].Exited()) << ends[0].Describe();
  const size_t first = ends[0].output.find("INCCL_CHANELS");
  ASSERT_NE(first, std::string::npos) << ends[0].output;
  EXPECT_EQ(ends[0].output.find("INCCL_CHANELS", first + 1), std::string::npos)
      << "warned of more than once: " << ends[0].output;
}
INSTANTIATE_OVER_TRANSPORTS(InitTest);

}  // namespace
}  // namespace inccl::test
