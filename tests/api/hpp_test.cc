// SPDX-License-Identifier: Apache-2.0
//
// ccl.hpp: every call of it against sums and places known beforehand, ownership, and errors as
// values. base/status.h beside it: the library's own names and these do not meet.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"
#include "inccl/ccl.hpp"

namespace inccl::test {
namespace {

using api::Codec;
using api::Communicator;
using api::Compression;
using api::DeviceMemory;
using api::Group;
using api::Memory;
using api::Span;
using api::Stats;
using api::Stream;

static_assert(!std::is_same_v<api::Status, inccl::Status>);
static_assert(!std::is_copy_constructible_v<Communicator> && !std::is_copy_assignable_v<Codec> &&
              !std::is_copy_constructible_v<Stream> && !std::is_copy_constructible_v<Group> &&
              !std::is_copy_constructible_v<Memory<float>>);
static_assert(std::is_nothrow_move_constructible_v<Communicator> &&
              std::is_nothrow_move_assignable_v<Communicator> &&
              std::is_nothrow_move_constructible_v<Stream>);
static_assert(api::TypeOf<float>::value == CCL_FLOAT32 &&
              api::TypeOf<double>::value == CCL_FLOAT64);
static_assert(api::TypeOf<int8_t>::value == CCL_INT8 && api::TypeOf<uint8_t>::value == CCL_UINT8);
static_assert(api::TypeOf<int32_t>::value == CCL_INT32 &&
              api::TypeOf<uint32_t>::value == CCL_UINT32);
static_assert(api::TypeOf<long>::value == CCL_INT64 && api::TypeOf<long long>::value == CCL_INT64 &&
              api::TypeOf<uint64_t>::value == CCL_UINT64);
static_assert(api::TypeOf<api::Float16>::value == CCL_FLOAT16 &&
              api::TypeOf<api::BFloat16>::value == CCL_BFLOAT16 &&
              api::TypeOf<api::Float8E4M3>::value == CCL_FLOAT8E4M3 &&
              api::TypeOf<api::Float8E5M2>::value == CCL_FLOAT8E5M2 &&
              api::TypeOf<std::byte>::value == CCL_UINT8);
// A view of a vector of derived elements would have the wrong stride.
struct Base {};
struct Derived : Base {
  int x;
};
static_assert(!std::is_constructible_v<Span<Base>, std::vector<Derived>&>);
static_assert(!std::is_constructible_v<Span<float>, const std::vector<float>&>);

#define EXPECT_DONE(call)                  \
  do {                                     \
    const api::Status done = (call);       \
    EXPECT_TRUE(done.ok()) << done.text(); \
  } while (false)

bool Says(const api::Status& status, const char* text) {
  return std::string(status.text()).find(text) != std::string::npos;
}

// Every rank a thread.
void OnThreads(int n, const std::function<void(int rank, Communicator* comm)>& body) {
  std::vector<Communicator> comms(static_cast<size_t>(n));
  const api::Status made = Communicator::InitAll(comms);
  ASSERT_TRUE(made.ok()) << made.text();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] { body(rank, &comms[static_cast<size_t>(rank)]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (Communicator& comm : comms) EXPECT_DONE(comm.Destroy());
}

TEST(HppTest, KnowsItsPlace) {
  EXPECT_EQ(*api::Version(), CCL_VERSION_CODE);
  OnThreads(3, [](int rank, Communicator* comm) {
    EXPECT_EQ(*comm->Rank(), rank);
    EXPECT_EQ(*comm->Count(), 3);
    EXPECT_EQ(*comm->Device(), -1);
    EXPECT_DONE(comm->AsyncError());
  });
}

TEST(HppTest, ReducesAnythingWithDataAndSize) {
  OnThreads(4, [](int rank, Communicator* comm) {
    const std::vector<int32_t> send(1000, rank + 1);
    std::vector<int32_t> recv(1000);
    EXPECT_DONE(comm->AllReduce(send, recv, CCL_SUM));
    EXPECT_EQ(recv, std::vector<int32_t>(1000, 10));
    EXPECT_DONE(comm->AllReduce(recv, recv, CCL_MAX));  // in place
    EXPECT_EQ(recv, std::vector<int32_t>(1000, 10));

    std::array<double, 3> array{1.5, 2.5, static_cast<double>(rank)};
    EXPECT_DONE(comm->AllReduce(array, array, CCL_SUM));
    EXPECT_EQ(array, (std::array<double, 3>{6, 10, 6}));

    uint64_t values[2] = {uint64_t{1} << 40, 3};
    EXPECT_DONE(comm->AllReduce(values, values, CCL_PROD));
    EXPECT_EQ(values[0], 0u);  // 2^160 modulo 2^64
    EXPECT_EQ(values[1], 81u);

    float one = 1;
    EXPECT_DONE(comm->AllReduce(Span(&one, 1), Span(&one, 1), CCL_SUM));
    EXPECT_EQ(one, 4.0f);
    EXPECT_DONE(
        comm->AllReduce(std::span<const float>(&one, 1), std::span<float>(&one, 1), CCL_AVG));
    EXPECT_EQ(one, 4.0f);

    std::vector<api::BFloat16> half(5, api::BFloat16{0x3fc0});  // 1.5
    EXPECT_DONE(comm->AllReduce(half, half, CCL_SUM));
    EXPECT_EQ(half[4].bits, 0x40c0);  // 6

    Memory<float> memory = *Memory<float>::Allocate(100);
    ASSERT_EQ(memory.size(), 100u);
    EXPECT_EQ(memory[99], 0.0f);
    for (float& value : memory) value = 0.5f;
    EXPECT_DONE(comm->AllReduce(memory, memory, CCL_SUM));
    EXPECT_EQ(memory[99], 2.0f);
  });
}

TEST(HppTest, SegmentsGoWhereTheyBelong) {
  constexpr int kRanks = 3;
  OnThreads(kRanks, [](int rank, Communicator* comm) {
    std::vector<int64_t> all(6), part(2), expected(6);
    for (int64_t i = 0; i < 6; ++i) all[static_cast<size_t>(i)] = 10 * rank + i;
    EXPECT_DONE(comm->ReduceScatter(all, part, CCL_SUM));
    EXPECT_EQ(part, (std::vector<int64_t>{30 + 6 * rank, 30 + 6 * rank + 3}));  // 10 (0+1+2)

    part = {rank, -rank};
    EXPECT_DONE(comm->AllGather(part, all));
    EXPECT_EQ(all, (std::vector<int64_t>{0, 0, 1, -1, 2, -2}));

    std::vector<int64_t> from(6);
    for (int64_t i = 0; i < 6; ++i) all[static_cast<size_t>(i)] = 100 * rank + i;
    EXPECT_DONE(comm->AllToAll(all, from));
    for (int64_t s = 0; s < kRanks; ++s) {
      EXPECT_EQ(from[static_cast<size_t>(2 * s)], 100 * s + 2 * rank);
      EXPECT_EQ(from[static_cast<size_t>(2 * s + 1)], 100 * s + 2 * rank + 1);
    }

    constexpr int kRoot = 1;
    std::vector<int64_t> gathered(rank == kRoot ? 6 : 0);
    EXPECT_DONE(comm->Gather(part, gathered, kRoot));
    if (rank == kRoot) {
      EXPECT_EQ(gathered, (std::vector<int64_t>{0, 0, 1, -1, 2, -2}));
    }
    std::vector<int64_t> back(2);
    EXPECT_DONE(comm->Scatter(gathered, back, kRoot));
    EXPECT_EQ(back, part);

    std::vector<int64_t> total(rank == kRoot ? 2 : 0);
    EXPECT_DONE(comm->Reduce(part, total, CCL_SUM, kRoot));
    if (rank == kRoot) {
      EXPECT_EQ(total, (std::vector<int64_t>{3, -3}));
    }
    std::vector<int64_t> copy(2);
    EXPECT_DONE(comm->Broadcast(total, copy, kRoot));
    EXPECT_EQ(copy, (std::vector<int64_t>{3, -3}));
    copy[0] = rank;
    EXPECT_DONE(comm->Broadcast(copy, 2));
    EXPECT_EQ(copy[0], 2);
  });
}

TEST(HppTest, CompressedWithinItsBound) {
  static constexpr size_t kCount = 100000;
  OnThreads(4, [](int rank, Communicator* comm) {
    std::vector<float> mine(kCount), exact(kCount), result(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      for (int r = 0; r < 4; ++r) {
        const auto value = static_cast<float>(std::sin(0.001 * static_cast<double>(i) + r));
        exact[i] += value;
        if (r == rank) mine[i] = value;
      }
    }
    const api::Result<Codec> codec = Codec::Create("hbi:bits=6");
    ASSERT_TRUE(codec.ok()) << codec.status().text();
    EXPECT_TRUE(std::string((*codec->Spec()).c_str()).find("bits=6") != std::string::npos);
    const api::Result<Codec::Promise> promise = codec->Bound(kCount, 4);
    ASSERT_TRUE(promise.ok()) << promise.status().text();
    EXPECT_GT(promise->bits, 3);
    EXPECT_LE(promise->bits, 6.5);
    Stats stats;
    const Compression how = {.codec = &*codec, .seed = 7, .step = 1, .stats = &stats};
    EXPECT_DONE(comm->AllReduceCompressed(mine, result, CCL_SUM, how));
    EXPECT_EQ(stats.compressed, 1);
    EXPECT_EQ(stats.elements, kCount);
    EXPECT_GT(stats.error_bound, 0);
    double worst = 0;
    for (size_t i = 0; i < kCount; ++i) {
      worst = std::max(worst, std::fabs(static_cast<double>(result[i]) - exact[i]));
    }
    EXPECT_GT(worst, 0);  // it was compressed
    EXPECT_LE(worst, stats.error_bound + 1e-5);

    api::Result<api::Residual> residual = api::Residual::Create(kCount);
    ASSERT_TRUE(residual.ok()) << residual.status().text();
    const Compression feeds = {.codec = &*codec, .residual = &*residual};
    EXPECT_DONE(comm->AllReduceCompressed(mine, result, CCL_SUM, feeds));
    std::vector<float> left(kCount), zero(kCount);
    EXPECT_DONE(residual->Export(left.data(), kCount));
    EXPECT_NE(left, zero);
    const std::vector<float> before = left;
    EXPECT_DONE(residual->Rollback(*comm));  // all ranks have completed the call
    EXPECT_DONE(residual->Export(left.data(), kCount));
    EXPECT_EQ(left, before);

    std::vector<float> apart = mine;
    const ccl_vector_t vectors[] = {{apart.data(), apart.data(), 3, nullptr},
                                    {apart.data() + 3, apart.data() + 3, kCount - 3, nullptr}};
    EXPECT_DONE(comm->AllReduceFused(vectors, 2, CCL_FLOAT32, CCL_SUM, {.seed = 7, .step = 3}));
    EXPECT_DONE(comm->AllReduceCompressed(mine, result, CCL_SUM, {.seed = 7, .step = 3}));
    EXPECT_EQ(apart, result);

    api::Result<api::Reducer> reducer = api::Reducer::Create("topk:k=0.1|fp16");
    ASSERT_TRUE(reducer.ok()) << reducer.status().text();
    EXPECT_STREQ(reducer->Spec()->c_str(),
                 "topk:block=1,k=0.1,mask=0,momentum=0,residual=1,select=exact,warm=0|fp16");
    api::Result<api::ReducerState> state = api::ReducerState::Create(*reducer, 1, kCount);
    ASSERT_TRUE(state.ok()) << state.status().text();
    size_t fresh = 0;
    EXPECT_DONE(state->Export(nullptr, &fresh));
    std::vector<char> kept(fresh), changed(fresh);
    EXPECT_DONE(state->Export(kept.data(), &fresh));
    const Compression reduced = {.seed = 7, .stats = &stats};
    EXPECT_DONE(comm->AllReduceReduced(mine, result, *state, CCL_SUM, reduced));
    EXPECT_GT(stats.ratio, 3);
    EXPECT_DONE(state->Export(changed.data(), &fresh));
    EXPECT_NE(kept, changed);
    EXPECT_DONE(state->Import(kept.data(), kept.size()));
    EXPECT_DONE(state->Rollback(*comm));
    EXPECT_DONE(state->Reset());
    EXPECT_DONE(state->Export(changed.data(), &fresh));
    EXPECT_EQ(kept, changed);

    // Integers are not: the stats say so, and the result is exact.
    std::vector<int32_t> integers(1000, rank);
    EXPECT_DONE(comm->AllReduceCompressed(integers, integers, CCL_SUM, how));
    EXPECT_EQ(stats.compressed, 0);
    EXPECT_EQ(integers[999], 6);

    std::vector<int32_t> all(4000, rank + 1), segment(1000);
    EXPECT_DONE(comm->ReduceScatterCompressed(all, segment, CCL_SUM));
    EXPECT_EQ(segment, std::vector<int32_t>(1000, 10));
    segment.assign(1000, rank);
    EXPECT_DONE(comm->AllGatherCompressed(segment, all));
    EXPECT_EQ(all[3999], 3);
  });
}

TEST(HppTest, StreamsRunInOrder) {
  OnThreads(3, [](int rank, Communicator* comm) {
    std::vector<float> a(5000, static_cast<float>(rank)), b(5000), c(5000);
    Stream stream = *Stream::Create();
    ASSERT_TRUE(stream);
    EXPECT_DONE(comm->AllReduce(a, b, CCL_SUM, stream));
    EXPECT_DONE(comm->AllReduce(b, c, CCL_SUM, stream));
    EXPECT_DONE(stream.Synchronize());
    EXPECT_EQ(c, std::vector<float>(5000, 9.0f));
    const api::Status query = stream.Query();
    EXPECT_TRUE(query.ok() && !query.in_progress());

    std::vector<float> d(5000);
    {
      Stream last = *Stream::Create();
      EXPECT_DONE(comm->AllReduce(a, d, CCL_SUM, last));
    }  // its end waits
    EXPECT_EQ(d, std::vector<float>(5000, 3.0f));
  });
}

TEST(HppTest, GroupsExchange) {
  OnThreads(4, [](int rank, Communicator* comm) {
    const int right = (rank + 1) % 4, left = (rank + 3) % 4;
    const std::vector<int> out(10000, rank);
    std::vector<int> in(10000, -1);
    Group group;
    EXPECT_DONE(comm->Send(out, right));
    EXPECT_DONE(comm->Recv(in, left));
    EXPECT_EQ(in[0], -1);  // not started
    EXPECT_DONE(group.End());
    EXPECT_EQ(in, std::vector<int>(10000, left));
    EXPECT_DONE(group.End());  // once is enough
    {
      Group by_scope;
      EXPECT_DONE(comm->Send(out, left));
      EXPECT_DONE(comm->Recv(in, right));
    }
    EXPECT_EQ(in, std::vector<int>(10000, right));
  });
}

TEST(HppTest, OneThreadForAllRanks) {
  std::array<Communicator, 3> comms;
  EXPECT_DONE(Communicator::InitAll(comms));
  std::array<Communicator, 3> parts;
  std::array<float, 3> values{1, 2, 3};
  {
    Group group;
    for (size_t r = 0; r < 3; ++r) {
      api::Result<Communicator> part = comms[r].Split(r == 1 ? CCL_SPLIT_NOCOLOR : 0, 0);
      ASSERT_TRUE(part.ok()) << part.status().text();
      EXPECT_FALSE(*part);          // not yet
      parts[r] = *std::move(part);  // and it may move
    }
    EXPECT_DONE(group.End());
  }
  EXPECT_TRUE(parts[0]);
  EXPECT_FALSE(parts[1]);
  EXPECT_EQ(*parts[2].Rank(), 1);
  {
    Group group;
    for (const size_t r : {size_t{0}, size_t{2}}) {
      EXPECT_DONE(parts[r].AllReduce(Span(&values[r], 1), Span(&values[r], 1), CCL_SUM));
    }
    EXPECT_DONE(group.End());
  }
  EXPECT_EQ(values, (std::array<float, 3>{4, 2, 4}));
}

TEST(HppTest, AWrongSizeSpoilsTheGroup) {
  std::array<Communicator, 2> comms;
  EXPECT_DONE(Communicator::InitAll(comms));
  std::vector<float> a(4, 1.0f), b(4), small(3);
  {
    Group group;
    EXPECT_DONE(comms[0].AllReduce(a, b, CCL_SUM));
    EXPECT_EQ(comms[1].AllReduce(a, small, CCL_SUM).code(), CCL_INVALID_ARGUMENT);
    EXPECT_EQ(group.End().code(), CCL_INVALID_ARGUMENT);
  }
  EXPECT_EQ(b, std::vector<float>(4, 0.0f));
}

TEST(HppTest, ErrorsAreValues) {
  const api::Result<Codec> codec = Codec::Create("zip");
  EXPECT_FALSE(codec.ok());
  EXPECT_EQ(codec.status().code(), CCL_INVALID_ARGUMENT);
  EXPECT_TRUE(Says(codec.status(), "zip")) << codec.status().text();
  EXPECT_FALSE(*codec);
  EXPECT_EQ(codec->Spec().status().code(), CCL_INVALID_ARGUMENT);

  Communicator none;
  std::vector<float> v(4);
  EXPECT_EQ(none.AllReduce(v, v, CCL_SUM).code(), CCL_INVALID_ARGUMENT);
  EXPECT_EQ(none.Count().status().code(), CCL_INVALID_ARGUMENT);
  EXPECT_DONE(none.Destroy());
  EXPECT_EQ(Communicator::InitAll(Span<Communicator>()).code(), CCL_INVALID_ARGUMENT);
  EXPECT_EQ(Communicator::Adopt(nullptr).status().code(), CCL_INVALID_ARGUMENT);
  EXPECT_FALSE(Memory<float>::Allocate(0).ok());
  EXPECT_FALSE(DeviceMemory<float>::Allocate(10, 0).ok());  // CUDA is not loaded
  EXPECT_FALSE(Memory<double>::Allocate(std::numeric_limits<size_t>::max() / 4).ok());

  OnThreads(2, [](int rank, Communicator* comm) {
    std::vector<float> four(4), three(3), two(2, 1.0f);
    const api::Status status = comm->AllReduce(four, three, CCL_SUM);
    EXPECT_EQ(status.code(), CCL_INVALID_ARGUMENT);
    EXPECT_STREQ(status.text(), (rank == 0 ? "rank 0/2: recv: has 3 elements, must have 4"
                                           : "rank 1/2: recv: has 3 elements, must have 4"));
    EXPECT_TRUE(
        Says(comm->ReduceScatter(three, two, CCL_SUM), "send: has 3 elements, must have 4"));
    EXPECT_TRUE(Says(comm->AllGather(two, three), "recv: has 3 elements, must have 4"));
    EXPECT_TRUE(Says(comm->AllToAll(three, three), "send: has 3 elements, must have 2"));
    EXPECT_TRUE(Says(comm->AllToAll(four, two), "recv: has 2 elements, must have 4"));
    EXPECT_TRUE(Says(comm->Gather(two, three, rank), "recv: has 3 elements, must have 4"));
    EXPECT_TRUE(Says(comm->Scatter(three, two, rank), "send: has 3 elements, must have 4"));
    EXPECT_TRUE(Says(comm->Reduce(two, three, CCL_SUM, rank), "recv: has 3 elements"));
    EXPECT_TRUE(Says(comm->Broadcast(two, three, rank), "send: has 2 elements, must have 3"));
    EXPECT_TRUE(Says(comm->Broadcast(two, 2), "root"));
    const Codec empty;
    const Compression how = {.codec = &empty};
    EXPECT_TRUE(Says(comm->AllReduceCompressed(two, two, CCL_SUM, how), "codec"));
    const api::Residual unmade;
    const Compression feeds = {.residual = &unmade};
    EXPECT_TRUE(Says(comm->AllReduceCompressed(two, two, CCL_SUM, feeds), "residual"));
    api::ReducerState state = *api::ReducerState::Create(*api::Reducer::Create("topk:k=0.5"), 1, 3);
    EXPECT_TRUE(Says(comm->AllReduceReduced(two, two, state, CCL_SUM), "send: has 2 elements"));
    EXPECT_TRUE(Says(comm->AllReduceReduced(three, two, state, CCL_SUM), "recv: has 2 elements"));
    std::vector<int32_t> integers(3);
    EXPECT_TRUE(Says(comm->AllReduceReduced(integers, integers, state, CCL_SUM), "state"));
    EXPECT_TRUE(Says(comm->AllReduceReduced(three, three, state, CCL_SUM, how), "codec"));
    // None of these counts as a call.
    EXPECT_DONE(comm->AsyncError());
    EXPECT_DONE(comm->AllReduce(two, two, CCL_SUM));
    EXPECT_EQ(two, std::vector<float>(2, 2.0f));
  });
}

TEST(HppTest, TextsOutliveTheNextCall) {
  const api::Status first = Codec::Create("zip").status();
  const api::Status second = Codec::Create("zap").status();
  api::Status copy;
  copy = first;
  EXPECT_TRUE(Says(first, "zip") && Says(copy, "zip") && Says(second, "zap"));
}

TEST(HppTest, ReductionsOfOnesOwn) {
  OnThreads(2, [](int rank, Communicator* comm) {
    const api::Result<ccl_redop_t> weighted = comm->CreatePreMulSum(rank == 0 ? 2.0f : 3.0f);
    ASSERT_TRUE(weighted.ok()) << weighted.status().text();
    std::vector<float> v(10, 1.0f);
    EXPECT_DONE(comm->AllReduce(v, v, *weighted));
    EXPECT_EQ(v, std::vector<float>(10, 5.0f));
    double factor = 10;
    const api::Result<ccl_redop_t> later = comm->CreatePreMulSumAt(&factor);
    ASSERT_TRUE(later.ok()) << later.status().text();
    factor = 100;
    std::vector<double> w(10, 1.0);
    EXPECT_DONE(comm->AllReduce(w, w, *later));
    EXPECT_EQ(w, std::vector<double>(10, 200.0));
    EXPECT_DONE(comm->DestroyReduction(*weighted));
    EXPECT_FALSE(comm->AllReduce(v, v, *weighted).ok());
    const api::Result<void*> handle = comm->Register(v);
    ASSERT_TRUE(handle.ok()) << handle.status().text();
    EXPECT_EQ(*handle, nullptr) << "peers cannot map it";
    EXPECT_DONE(comm->Deregister(*handle));
    EXPECT_FALSE(comm->Deregister(v.data()).ok());
  });
}

TEST(HppTest, ByUniqueIdInTheBackground) {
  const api::Result<api::UniqueId> id = api::MakeUniqueId();
  ASSERT_TRUE(id.ok()) << id.status().text();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      api::Config config;
      config.blocking = 0;
      api::Result<Communicator> comm = Communicator::InitRank(2, *id, rank, &config);
      ASSERT_TRUE(comm.ok() && *comm) << comm.status().text();
      while (comm->AsyncError().in_progress()) std::this_thread::yield();
      EXPECT_DONE(comm->AsyncError());
      std::vector<int> v(3, rank + 1);
      EXPECT_DONE(comm->AllReduce(v, v, CCL_SUM));
      EXPECT_EQ(v, std::vector<int>(3, 3));
      EXPECT_EQ(*comm->LastCompleted(), 1u);
      EXPECT_TRUE(comm->Finalize().in_progress());
      while (comm->AsyncError().in_progress()) std::this_thread::yield();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(HppTest, ABadIdIsAnError) {
  const api::Result<Communicator> comm = Communicator::InitRank(2, api::UniqueId{}, 0);
  EXPECT_EQ(comm.status().code(), CCL_INVALID_ARGUMENT);
  EXPECT_FALSE(*comm);
}

TEST(HppTest, RevokedThenShrunk) {
  OnThreads(3, [](int rank, Communicator* comm) {
    std::vector<float> v(3, 1.0f);
    EXPECT_DONE(comm->AllReduce(v, v, CCL_SUM));
    EXPECT_DONE(comm->SetTimeout(500000));
    EXPECT_EQ(comm->SetTimeout(-1).code(), CCL_INVALID_ARGUMENT);
    if (rank == 2) {
      EXPECT_DONE(comm->Revoke());
      return;
    }
    while (comm->AllReduce(v, v, CCL_SUM).ok()) {
    }
    EXPECT_EQ(comm->AsyncError().code(), CCL_REMOTE_ERROR);
    EXPECT_FALSE(std::string(comm->AsyncError().text()).empty());
    api::Result<Communicator> rest = comm->Shrink(std::array<int, 1>{2});
    ASSERT_TRUE(rest.ok()) << rest.status().text();
    EXPECT_EQ(*rest->Count(), 2);
    v.assign(3, 5.0f);
    EXPECT_DONE(rest->AllReduce(v, v, CCL_SUM));
    EXPECT_EQ(v, std::vector<float>(3, 10.0f));
  });
}

TEST(HppTest, AbortFromAnotherThread) {
  std::array<Communicator, 2> comms;
  EXPECT_DONE(Communicator::InitAll(comms));
  std::vector<float> v(3);
  std::thread waiting([&] { EXPECT_FALSE(comms[0].AllReduce(v, v, CCL_SUM).ok()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_DONE(comms[0].Abort());
  waiting.join();
  EXPECT_FALSE(comms[0]);
  EXPECT_DONE(comms[0].Abort());  // nothing left to end
  // What the other had sent before may be enough for one call.
  EXPECT_FALSE(comms[1].AllReduce(v, v, CCL_SUM).ok() && comms[1].AllReduce(v, v, CCL_SUM).ok());
}

TEST(HppTest, MovesLeaveNothingBehind) {
  std::array<Communicator, 1> comms;
  EXPECT_DONE(Communicator::InitAll(comms));
  Communicator other = std::move(comms[0]);
  EXPECT_TRUE(other);
  EXPECT_FALSE(comms[0]);  // NOLINT(bugprone-use-after-move)
  Codec a = *Codec::Create("none");
  Codec b = *Codec::Create("hbi:bits=4");
  const ccl_codec_t kept = b.get();
  a = std::move(b);
  EXPECT_EQ(a.get(), kept);
  EXPECT_FALSE(b);  // NOLINT(bugprone-use-after-move)
  ccl_codec_t raw = a.Release();
  EXPECT_EQ(ccl_codec_destroy(raw), CCL_SUCCESS);
}

}  // namespace
}  // namespace inccl::test
