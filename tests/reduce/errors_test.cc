// SPDX-License-Identifier: Apache-2.0
//
// Wrong arguments, calls that differ between ranks, and calls that fail in the middle.
#include <signal.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "base/fault_point.h"
#include "integration/hosts_world.h"
#include "reduce/call_world.h"

namespace inccl::test {
namespace {

constexpr size_t kCount = 3000;

TEST(ReducerErrorTest, WrongArgumentsAreNamed) {
  ccl_reducer_t reducer = nullptr;
  ExpectError(ccl_reducer_create(nullptr, "topk"), CCL_INVALID_ARGUMENT, "reducer: NULL");
  ExpectError(ccl_reducer_create(&reducer, nullptr), CCL_INVALID_ARGUMENT, "spec: NULL");
  ExpectError(ccl_reducer_create(&reducer, "topk:k=7"), CCL_INVALID_ARGUMENT, "k=7");
  ASSERT_EQ(ccl_reducer_create(&reducer, "topk:k=0.5|bf16"), CCL_SUCCESS);
  char text[512];
  ASSERT_EQ(ccl_reducer_spec(reducer, text, sizeof text), CCL_SUCCESS);
  EXPECT_STREQ(text, "topk:block=1,k=0.5,mask=0,momentum=0,residual=1,select=exact,warm=0|bf16");
  ExpectError(ccl_reducer_spec(reducer, text, 10), CCL_INVALID_ARGUMENT, "size: 10");
  ccl_reducer_state_t state = nullptr;
  ExpectError(ccl_reducer_state_create(&state, reducer, 2, 2, CCL_INT8), CCL_INVALID_ARGUMENT,
              "type: int8");
  ExpectError(ccl_reducer_state_create(&state, reducer, SIZE_MAX, 2, CCL_FLOAT32),
              CCL_INVALID_ARGUMENT, "rows and cols");
  ExpectError(ccl_reducer_state_create(nullptr, reducer, 1, 2, CCL_FLOAT32), CCL_INVALID_ARGUMENT,
              "state: NULL");
  EXPECT_EQ(ccl_reducer_destroy(reducer), CCL_SUCCESS);
  ExpectError(ccl_reducer_destroy(reducer), CCL_INVALID_ARGUMENT, "reducer: not a reducer");
  ExpectError(ccl_reducer_state_create(&state, reducer, 1, 2, CCL_FLOAT32), CCL_INVALID_ARGUMENT,
              "reducer: not a reducer, or destroyed");
  EXPECT_EQ(ccl_reducer_destroy(nullptr), CCL_SUCCESS);
  EXPECT_EQ(ccl_reducer_state_destroy(nullptr), CCL_SUCCESS);
}

TEST(ReducerErrorTest, WrongCallsHaveNoEffect) {
  RunThreads(2, [](int, ccl_comm_t comm) {
    OwnedState state = MakeState("topk:k=0.5", 1, 8);
    const OwnedState residual_owner = MakeState("topk:k=0.5,residual=0", 1, 8);
    const std::vector<std::byte> fresh = Exported(state);
    std::vector<float> in(8, 1.0f), out(8);
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    const auto reduce = [&](const void* send, ccl_redop_t op) {
      return ccl_allreduce_reduced(send, out.data(), state.get(), op, &how, comm, nullptr);
    };
    ExpectError(reduce(nullptr, CCL_SUM), CCL_INVALID_ARGUMENT, "send: NULL");
    ExpectError(reduce(in.data(), CCL_MAX), CCL_INVALID_ARGUMENT, "op: max is neither sum nor avg");
    ExpectError(reduce(out.data() + 1, CCL_SUM), CCL_INVALID_ARGUMENT, "overlap");
    ccl_codec_t codec = nullptr;
    CHECK_OK(ccl_codec_create(&codec, "bf16"));
    how.codec = codec;
    ExpectError(reduce(in.data(), CCL_SUM), CCL_INVALID_ARGUMENT, "compression->codec");
    how.codec = nullptr;
    CHECK_OK(ccl_codec_destroy(codec));
    ccl_residual_t residual = nullptr;
    CHECK_OK(ccl_residual_create(&residual, 8, nullptr));
    how.residual = residual;
    ExpectError(reduce(in.data(), CCL_SUM), CCL_INVALID_ARGUMENT, "compression->residual");
    how.residual = nullptr;
    CHECK_OK(ccl_residual_destroy(residual));
    EXPECT_EQ(Exported(state), fresh);

    size_t size = 3;
    ExpectError(ccl_reducer_state_export(state.get(), in.data(), &size), CCL_INVALID_ARGUMENT,
                "size: 3");
    ExpectError(ccl_reducer_state_import(state.get(), "abc", 3), CCL_INVALID_ARGUMENT,
                "data: not an exported state");
    const std::vector<std::byte> other = Exported(residual_owner);
    ExpectError(ccl_reducer_state_import(state.get(), other.data(), other.size()),
                CCL_INVALID_ARGUMENT,
                "data: exported from topk:block=1,k=0.5,mask=0,momentum=0,residual=0");
    for (size_t cut = 0; cut < fresh.size(); ++cut) {
      EXPECT_EQ(ccl_reducer_state_import(state.get(), fresh.data(), cut), CCL_INVALID_ARGUMENT);
    }
    std::vector<std::byte> damaged = fresh;
    const uint32_t nan = 0x7fc00000;
    std::memcpy(&damaged[damaged.size() - sizeof(uint64_t) - sizeof nan], &nan, sizeof nan);
    ExpectError(ccl_reducer_state_import(state.get(), damaged.data(), damaged.size()),
                CCL_INVALID_ARGUMENT, "damaged");
    EXPECT_EQ(Exported(state), fresh);
    CHECK_OK(reduce(in.data(), CCL_SUM));

    const ccl_reducer_state_t gone = state.release();
    CHECK_OK(ccl_reducer_state_destroy(gone));
    ExpectError(ccl_allreduce_reduced(in.data(), out.data(), gone, CCL_SUM, nullptr, comm, nullptr),
                CCL_INVALID_ARGUMENT, "state: not the state of a reducer, or destroyed");
    ExpectError(ccl_reducer_state_reset(gone), CCL_INVALID_ARGUMENT, "state");
    ExpectError(
        ccl_allreduce_reduced(in.data(), out.data(), nullptr, CCL_SUM, nullptr, comm, nullptr),
        CCL_INVALID_ARGUMENT, "state: NULL");
  });
}

// Codecs and algorithms that cannot run a round are refused before anything is sent.
TEST(ReducerErrorTest, RoundsThatCannotRunAreRefused) {
  const ScopedEnv algorithm({{"INCCL_ALGO", "ring"}});
  RunThreads(4, [](int, ccl_comm_t comm) {
    const OwnedState state = MakeState("random_k:k=0.5|hbi:m=2", 1, kCount);
    const OwnedState fine = MakeState("random_k:k=0.5", 1, kCount);
    std::vector<float> in(kCount, 1.0f), out(kCount);
    ExpectError(
        ccl_allreduce_reduced(in.data(), out.data(), state.get(), CCL_SUM, nullptr, comm, nullptr),
        CCL_INVALID_ARGUMENT, "m of the codec hbi runs on direct only");
    CHECK_OK(
        ccl_allreduce_reduced(in.data(), out.data(), fine.get(), CCL_SUM, nullptr, comm, nullptr));
  });
}

// Also where the numbers of elements are not known before the call: a refused call has no number.
TEST(ReducerErrorTest, RefusedCallsOfUnknownLengthHaveNoEffect) {
  const ScopedEnv algorithm({{"INCCL_ALGO", "ring"}});
  RunThreads(3, [](int, ccl_comm_t comm) {
    uint64_t completed = 0;
    for (const char* spec :
         {"random_k:k=0.5|hbi:m=2,min_bytes=8", "clt_k:k=0.5|hbi:m=2,min_bytes=8",
          "topk:k=0.5,select=sidco|hbi:m=2,min_bytes=8"}) {
      const OwnedState state = MakeState(spec, 1, kCount);
      std::vector<float> in(kCount, 1.0f), out(kCount);
      ExpectError(ccl_allreduce_reduced(in.data(), out.data(), state.get(), CCL_SUM, nullptr, comm,
                                        nullptr),
                  CCL_INVALID_ARGUMENT, "hbi");
      CHECK_OK(ccl_allreduce(in.data(), out.data(), 1, CCL_FLOAT32, CCL_SUM, comm, nullptr));
      uint64_t now = 0;
      CHECK_OK(ccl_comm_last_completed(comm, &now));
      EXPECT_EQ(now, completed + 1);
      completed = now;
    }
  });
}

// The leader of the former call is no rank of the smaller communicator.
TEST(ReducerErrorTest, AStateMovesToASmallerCommunicator) {
  RunHosts("aabbc", [](const Side& side, ccl_comm_t comm) {
    const OwnedState state = MakeState("clt_k:k=0.1", 30, kCount / 30);
    std::vector<float> in(kCount, 1.0f), out(kCount);
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    how.step = 4;
    CHECK_OK(
        ccl_allreduce_reduced(in.data(), out.data(), state.get(), CCL_SUM, &how, comm, nullptr));
    ccl_comm_t part = nullptr;
    CHECK_OK(ccl_comm_split(comm, side.rank() < 3 ? 0 : 1, 0, &part, nullptr));
    CHECK_OK(
        ccl_allreduce_reduced(in.data(), out.data(), state.get(), CCL_SUM, &how, part, nullptr));
    CHECK_OK(ccl_comm_destroy(part));
  });
}

struct Difference {
  const char* name;
  const char* spec;  // of rank 1; rank 0 has topk:k=0.1
  size_t rows, cols;
  uint64_t seed, step;
  ccl_redop_t op;
  ccl_datatype_t type;
  const char* text;
};

TEST(ReducerErrorTest, CallsThatDifferAreNamedOnAllRanks) {
  const Difference cases[] = {
      {"spec", "topk:k=0.2", 30, 100, 0, 0, CCL_SUM, CCL_FLOAT32, "topk:block=1,k=0.2"},
      {"codec", "topk:k=0.1|bf16", 30, 100, 0, 0, CCL_SUM, CCL_FLOAT32, "|bf16"},
      {"shape", "topk:k=0.1", 100, 30, 0, 0, CCL_SUM, CCL_FLOAT32, "of 100x30"},
      {"count", "topk:k=0.1", 30, 101, 0, 0, CCL_SUM, CCL_FLOAT32, "count=3030"},
      {"seed", "topk:k=0.1", 30, 100, 7, 0, CCL_SUM, CCL_FLOAT32, "seed=7"},
      {"step", "topk:k=0.1", 30, 100, 0, 9, CCL_SUM, CCL_FLOAT32, "step=9"},
      {"op", "topk:k=0.1", 30, 100, 0, 0, CCL_AVG, CCL_FLOAT32, "avg"},
      {"type", "topk:k=0.1", 30, 100, 0, 0, CCL_SUM, CCL_BFLOAT16, "bfloat16"},
      {"method", "random_k:k=0.1", 30, 100, 0, 0, CCL_SUM, CCL_FLOAT32, "reducer=random_k"},
  };
  for (const Difference& c : cases) {
    SCOPED_TRACE(c.name);
    RunThreads(3, [&](int rank, ccl_comm_t comm) {
      const bool other = rank == 1;
      const OwnedState state =
          other ? MakeState(c.spec, c.rows, c.cols, c.type) : MakeState("topk:k=0.1", 30, 100);
      const std::vector<std::byte> fresh = Exported(state);
      std::vector<float> in(5000, 1.0f), out(5000);
      ccl_compression_t how = CCL_COMPRESSION_INIT;
      how.seed = other ? c.seed : 0;
      how.step = other ? c.step : 0;
      ExpectError(ccl_allreduce_reduced(in.data(), out.data(), state.get(), other ? c.op : CCL_SUM,
                                        &how, comm, nullptr),
                  CCL_INVALID_USAGE, c.text);
      const std::string text = ccl_get_last_error(comm);
      EXPECT_NE(text.find("reducer=topk:block=1,k=0.1"), std::string::npos) << text;
      EXPECT_NE(text.find("rank 1/3"), std::string::npos) << text;
      EXPECT_EQ(Exported(state), fresh);
    });
  }
}

TEST(ReducerErrorTest, AnotherCollectiveIsAMismatch) {
  RunThreads(2, [](int rank, ccl_comm_t comm) {
    const OwnedState state = MakeState("topk:k=0.1", 30, 100);
    std::vector<float> in(kCount, 1.0f), out(kCount);
    const ccl_result_t result =
        rank == 0
            ? ccl_allreduce_reduced(in.data(), out.data(), state.get(), CCL_SUM, nullptr, comm,
                                    nullptr)
            : ccl_allreduce(in.data(), out.data(), kCount, CCL_FLOAT32, CCL_SUM, comm, nullptr);
    ExpectError(result, CCL_INVALID_USAGE, "reducer=topk:block=1,k=0.1");
  });
}

// One state, two communicators at once.
TEST(ReducerErrorTest, AStateInUseIsRefused) {
  ccl_comm_t comms[2][2] = {};
  for (auto& pair : comms) ASSERT_EQ(ccl_comm_init_all(pair, 2, nullptr), CCL_SUCCESS);
  const OwnedState state = MakeState("topk:k=0.1", 1, kCount);
  const OwnedState other = MakeState("topk:k=0.1", 1, kCount);
  std::vector<float> in(kCount, 1.0f), out(kCount), out2(kCount), out3(kCount);
  ccl_stream_t stream = nullptr;
  ASSERT_EQ(ccl_stream_create(&stream), CCL_SUCCESS);
  // Rank 0 of the first communicator waits for rank 1 with the state. Nothing asks the state
  // whether it is in use until it is: asking uses it, too.
  std::atomic<bool> begun{false};
  fault::Plan plan;
  plan.rank = 0;
  plan.point = fault::IndexOf("call.after_begin");
  plan.hit = 1;
  plan.action = fault::Action::kCall;
  plan.call = [&] { begun.store(true); };
  fault::Arm(plan);
  ASSERT_EQ(ccl_allreduce_reduced(in.data(), out.data(), state.get(), CCL_SUM, nullptr, comms[0][0],
                                  stream),
            CCL_SUCCESS);
  while (!begun.load()) std::this_thread::yield();
  fault::Disarm();
  ExpectError(ccl_reducer_state_reset(state.get()), CCL_INVALID_USAGE, "a call is using it");
  ExpectError(ccl_reducer_state_rollback(state.get(), comms[0][0]), CCL_INVALID_USAGE,
              "a call is using it");
  ExpectError(ccl_allreduce_reduced(in.data(), out2.data(), state.get(), CCL_SUM, nullptr,
                                    comms[1][0], nullptr),
              CCL_INVALID_USAGE, "a call is using it");
  EXPECT_EQ(ccl_allreduce_reduced(in.data(), out3.data(), other.get(), CCL_SUM, nullptr,
                                  comms[0][1], nullptr),
            CCL_SUCCESS);
  EXPECT_EQ(ccl_stream_synchronize(stream), CCL_SUCCESS);
  EXPECT_EQ(out, out3);
  EXPECT_EQ(ccl_reducer_state_reset(state.get()), CCL_SUCCESS);
  for (auto& pair : comms) {
    for (ccl_comm_t comm : pair) ccl_comm_destroy(comm);
  }
  EXPECT_EQ(ccl_stream_destroy(stream), CCL_SUCCESS);
}

struct Death {
  const char* spec;
  uint64_t rounds;
};

// Runs one call, then one in whose round number `round` rank 2 dies.
int LoseRankInRound(const Side& side, const char* spec, uint64_t round) {
  ccl_comm_t comm = nullptr;
  if (side.Init(&comm, CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
  const OwnedState state = MakeState(spec, 30, kCount / 30);
  const Vectors inputs = NormalInputs(3, kCount, 3);
  const std::vector<float>& in = inputs[static_cast<size_t>(side.rank())];
  std::vector<float> out(kCount);
  const auto step = [&] {
    return ccl_allreduce_reduced(in.data(), out.data(), state.get(), CCL_SUM, nullptr, comm,
                                 nullptr);
  };
  if (step() != CCL_SUCCESS) return 11;
  const std::vector<std::byte> kept = Exported(state);
  side.mine().stage = 1;
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(side.Await(rank, 1));
  fault::Plan plan;
  if (side.rank() == 2) {
    plan.point = fault::IndexOf("call.after_bind");  // once in each round
    plan.hit = round;
    plan.action = fault::Action::kKill;
  }
  fault::Arm(plan);
  EXPECT_EQ(step(), CCL_REMOTE_ERROR);
  fault::Disarm();
  EXPECT_EQ(Exported(state), kept);
  EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
  return 0;
}

TEST(ReducerErrorTest, ACallThatFailsInTheMiddleLeavesTheStateAsItWas) {
  const Death deaths[] = {{"topk:k=0.1|fp16", 2},        {"topk:k=0.1,select=sidco", 2},
                          {"random_k:k=0.1|hbi", 1},     {"clt_k:k=0.1", 2},
                          {"powersgd:rank=2", 2},        {"count_sketch", 3},
                          {"topk:block=30,k=0.1|hbi", 3}};
  for (const Death& death : deaths) {
    for (uint64_t round = 1; round <= death.rounds; ++round) {
      SCOPED_TRACE(std::string(death.spec) + " round " + std::to_string(round));
      ProcessWorld world({.nranks = 3}, [&](const Side& side) {
        return LoseRankInRound(side, death.spec, round);
      });
      const std::vector<RankEnd>& ends = world.Wait();
      EXPECT_TRUE(ends[0].Exited()) << ends[0].Describe();
      EXPECT_TRUE(ends[1].Exited()) << ends[1].Describe();
      EXPECT_TRUE(ends[2].Killed(SIGKILL)) << ends[2].Describe();
    }
  }
}

// Runs two calls, then rank 3 dies in the third, and rank 2 in its repetition: each communicator
// counts its calls from 1.
int LoseTwoRanks(const Side& side) {
  ccl_comm_t comms[3] = {};
  if (side.Init(&comms[0], CCL_CONFIG_INIT) != CCL_SUCCESS) return 10;
  const OwnedState state = MakeState("topk:k=0.1", 30, kCount / 30);
  const Vectors inputs = NormalInputs(4, kCount, 3);
  const std::vector<float>& in = inputs[static_cast<size_t>(side.rank())];
  std::vector<float> out(kCount);
  const auto step = [&](ccl_comm_t comm) {
    return ccl_allreduce_reduced(in.data(), out.data(), state.get(), CCL_SUM, nullptr, comm,
                                 nullptr);
  };
  for (int call = 0; call < 2; ++call) {
    if (step(comms[0]) != CCL_SUCCESS) return 11;
  }
  const std::vector<std::byte> kept = Exported(state);
  for (int death = 0; death < 2; ++death) {
    side.mine().stage = death + 1;
    for (int rank = 0; rank < 4 - death; ++rank) EXPECT_TRUE(side.Await(rank, death + 1));
    if (side.rank() == 3 - death) raise(SIGKILL);
    EXPECT_EQ(step(comms[death]), CCL_REMOTE_ERROR);
    if (ccl_comm_shrink(comms[death], nullptr, 0, &comms[death + 1], nullptr, CCL_SHRINK_ABORT) !=
        CCL_SUCCESS) {
      return 12;
    }
    uint64_t operation = 7;
    EXPECT_EQ(ccl_comm_last_completed(comms[death + 1], &operation), CCL_SUCCESS);
    EXPECT_EQ(operation, death == 0 ? 2u : 0u);
    EXPECT_EQ(ccl_reducer_state_rollback(state.get(), comms[death + 1]), CCL_SUCCESS);
    EXPECT_EQ(Exported(state), kept);
  }
  EXPECT_EQ(step(comms[2]), CCL_SUCCESS);
  for (ccl_comm_t comm : comms) EXPECT_EQ(ccl_comm_destroy(comm), CCL_SUCCESS);
  return 0;
}

TEST(ReducerErrorTest, ASecondDeathTakesBackNoCallOfTheFirstCommunicator) {
  ProcessWorld world({.nranks = 4}, [](const Side& side) { return LoseTwoRanks(side); });
  world.ExpectAllExited({2, 3});
}

}  // namespace
}  // namespace inccl::test
