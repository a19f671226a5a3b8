// SPDX-License-Identifier: Apache-2.0
//
// A device's engine by itself: what it gives to the two halves of a codec's step on the device, in
// which order they come, and what becomes of their errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "compress/identity_codec.h"
#include "engine/device_engine.h"
#include "fakes/fake_device.h"
#include "transport/loopback/loopback.h"
#include "world/error_format.h"

namespace inccl::test {
namespace {

constexpr uint32_t kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(float);

const char* ErrorName(int /*error*/) { return "cudaErrorOfTheTest"; }

// The steps of a codec, as told by the test.
class ToldState final : public CodecState {
 public:
  using Half = std::function<Status(DeviceWork*, std::span<const Term>, std::span<Term>)>;
  Status Begin(const CollectiveArgs&) override { return Status::Ok(); }
  Status Combine(const Range& range, std::span<const Term> inputs,
                 std::span<Term> outputs) override {
    ++combined;
    return plain.Combine(range, inputs, outputs);
  }
  Result<bool> Launch(const Range&, std::span<const Term> inputs, std::span<Term> outputs,
                      DeviceWork* work) override {
    if (launch == nullptr) return false;
    if (Status status = launch(work, inputs, outputs); !status.ok()) return status;
    return true;
  }
  Status Complete(const Range&, std::span<const Term> inputs, std::span<Term> outputs,
                  DeviceWork* work) override {
    return land(work, inputs, outputs);
  }
  void Finish(CodecStats*) override {}

  Half launch, land;
  IdentityState plain;
  int combined = 0;
};

class EngineStepsTest : public ::testing::Test {
 protected:
  EngineStepsTest() {
    device_.SetKernels(&kernels_);
    ends_ = MakeLoopback(2);
    LaneSpec spec{.channel = 0, .producer = 0, .consumers = {1}, .slot_bytes = kBytes, .depth = 2};
    lane_ = *ends_[0]->OpenSend(spec);
    slot_ = (*lane_->TryAcquire()).data;
    engine_ =
        *DeviceEngine::Create(&device_, 1, ends_[0].get(), &regions_, {2 * kBytes, 2 * kBytes});
    EXPECT_TRUE(state_.plain.Begin({.nranks = 2, .count = kCount}).ok());
    input_ = device_.Allocate(kBytes, 1);
    output_ = device_.Allocate(kBytes, 1);
    Begin(false);
    for (uint32_t i = 0; i < kCount; ++i) Value(input_, i) = static_cast<float>(i);
  }
  ~EngineStepsTest() override {
    engine_.reset();
    lane_.reset();
    ends_.clear();
    EXPECT_EQ(device_.host_bytes, 0u);
    EXPECT_EQ(device_.registered, 0u);
  }

  // `whole`: the input is small and not compressed.
  void Begin(bool whole) {
    EXPECT_TRUE(engine_->Begin({{}, input_, kBytes, output_, kBytes, !whole}).ok());
  }
  float& Value(std::byte* memory, uint32_t i) {
    return reinterpret_cast<float*>(device_.Reach(memory))[i];
  }
  static Term Input(std::byte* data) { return {{Form::kInput, 0}, data, kBytes}; }
  static Term Output(std::byte* data) { return {{Form::kOutput, 0}, data, kBytes}; }
  static Term Sum(std::byte* data, uint16_t of) { return {{Form::kSum, of}, data, kBytes}; }
  static Term Outcome(std::byte* data) { return {{Form::kResult, 0}, data, kBytes}; }

  Result<CompletionId> Combine(const std::vector<Term>& inputs, std::vector<Term>* outputs) {
    return engine_->Combine(&state_, {.segment = 0, .first = 0, .count = kCount}, inputs, *outputs);
  }
  Status Finish(CompletionId completion) {
    while (completion != 0) {
      Result<bool> done = engine_->Done(completion);
      if (!done.ok()) return done.status();
      if (*done) break;
      std::this_thread::yield();
    }
    return Status::Ok();
  }

  const cuda::Launchers kernels_{.side_words = nullptr,
                                 .encode = nullptr,
                                 .add = nullptr,
                                 .decode = nullptr,
                                 .fold = nullptr,
                                 .cast_encode = nullptr,
                                 .cast_decode = nullptr,
                                 .error_name = ErrorName};
  FakeDevice device_{size_t{8} << 20};
  std::vector<std::unique_ptr<Transport>> ends_;
  ImportedRegions regions_{&device_, 1, nullptr};  // no peer exports anything
  std::unique_ptr<SendLane> lane_;
  std::byte* slot_ = nullptr;
  std::unique_ptr<DeviceEngine> engine_;
  ToldState state_;
  std::byte *input_ = nullptr, *output_ = nullptr;
};

TEST_F(EngineStepsTest, ACopyDoesNotCrossTheEndOfTheSlots) {
  DeviceSlots slots(&device_, 1, ends_[0].get());
  size_t most = kBytes, more = size_t{1} << 32;
  ASSERT_TRUE(slots.Copies(slot_, most));
  ASSERT_FALSE(slots.Copies(slot_, more));
  while (more - most > 1) {
    const size_t middle = most + (more - most) / 2;
    (slots.Copies(slot_, middle) ? most : more) = middle;
  }
  for (const size_t offset : {size_t{1}, size_t{64}, most - 1}) {
    EXPECT_TRUE(slots.Copies(slot_ + offset, most - offset)) << offset;
    EXPECT_FALSE(slots.Copies(slot_ + offset, most - offset + 1)) << offset;
  }
}

TEST_F(EngineStepsTest, KernelsRunBetweenTheTwoHalves) {
  std::vector<Term> outputs = {Sum(slot_, 1)};
  const std::vector<Term> inputs = {Input(input_)};
  bool landed = false;
  state_.launch = [&](DeviceWork* work, std::span<const Term> in, std::span<Term> out) {
    EXPECT_EQ(work->Reach(out[0].data, kBytes), out[0].data);
    EXPECT_EQ(work->Reach(reinterpret_cast<std::byte*>(&landed), 1), nullptr);
    for (int i = 0; i < 4; ++i) {
      Result<std::byte*> scratch = work->Scratch(i == 3 ? 1u << 20 : 100u);
      EXPECT_TRUE(scratch.ok());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(*scratch) % 256, 0u);
      EXPECT_NE(device_.AddressOf(1, *scratch), nullptr);
      work->kept[static_cast<size_t>(i)] = *scratch;
    }
    std::byte* const from = in[0].data;
    std::byte* const to = out[0].data;
    float* const note = reinterpret_cast<float*>(work->kept[0]);
    return work->Run([=, this](const cuda::Launchers& kernels, void* stream) {
      EXPECT_EQ(&kernels, &kernels_);
      device_.Launch(stream, [=, this] {
        std::memcpy(to, device_.Reach(from), kBytes);
        *note = 5;
      });
      return 0;
    });
  };
  state_.land = [&](DeviceWork* work, std::span<const Term>, std::span<Term> out) {
    EXPECT_EQ(*reinterpret_cast<float*>(work->kept[0]), 5.0f);
    out[0].bytes = 17;
    landed = true;
    return Status::Ok();
  };
  device_.Launch(nullptr, [] {});
  const Result<CompletionId> completion = Combine(inputs, &outputs);
  ASSERT_TRUE(completion.ok());
  ASSERT_NE(*completion, 0u);
  EXPECT_FALSE(landed);
  ASSERT_TRUE(Finish(*completion).ok());
  EXPECT_TRUE(landed);
  EXPECT_EQ(outputs[0].bytes, 17u);
  EXPECT_EQ(reinterpret_cast<float*>(slot_)[999], 999.0f);
  EXPECT_EQ(state_.combined, 0);
}

// As long as anybody else holds them; then they make room, and nothing else can come to their
// address before.
TEST_F(EngineStepsTest, ConstantsAreCopiedOnce) {
  using Table = std::vector<std::byte>;
  auto table = std::make_shared<const Table>(3000, std::byte{1});
  std::vector<const std::byte*> copies;
  state_.launch = [&](DeviceWork* work, std::span<const Term>, std::span<Term>) {
    Result<const std::byte*> copy = work->Constant(*table, table);
    EXPECT_TRUE(copy.ok());
    EXPECT_EQ(device_.DeviceOf(*copy), 1);
    EXPECT_EQ(std::memcmp(device_.Reach(*copy), table->data(), table->size()), 0);
    copies.push_back(*copy);
    return Status::Ok();
  };
  state_.land = [](DeviceWork*, std::span<const Term>, std::span<Term>) { return Status::Ok(); };
  const auto step = [&] {
    std::vector<Term> outputs = {Sum(slot_, 1)};
    const std::vector<Term> inputs = {Input(input_)};
    ASSERT_TRUE(Finish(*Combine(inputs, &outputs)).ok());
  };
  step();
  step();
  EXPECT_EQ(copies[0], copies[1]);
  const std::shared_ptr<const Table> first = table;
  table = std::make_shared<const Table>(3000, std::byte{2});
  step();
  EXPECT_NE(copies[2], copies[0]);
  const std::weak_ptr<const Table> second = table;
  table = std::make_shared<const Table>(3000, std::byte{3});
  EXPECT_FALSE(second.expired()) << "held with its copy";
  step();
  EXPECT_TRUE(second.expired());
  EXPECT_EQ(copies[3], copies[2]);
  table = first;
  step();
  EXPECT_EQ(copies[4], copies[0]);
}

TEST_F(EngineStepsTest, ErrorsOfTheHalves) {
  const std::vector<Term> inputs = {Input(input_)};
  std::vector<Term> outputs = {Sum(slot_, 1)};
  state_.launch = [&](DeviceWork* work, std::span<const Term>, std::span<Term>) {
    return work->Run([](const cuda::Launchers&, void*) { return 719; });
  };
  const Result<CompletionId> refused = Combine(inputs, &outputs);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kUnhandledCudaError);
  EXPECT_TRUE(Matches(refused.status().message(), "cudaErrorOfTheTest"))
      << refused.status().message();
  engine_->Drain();

  state_.launch = [](DeviceWork*, std::span<const Term>, std::span<Term>) { return Status::Ok(); };
  state_.land = [](DeviceWork*, std::span<const Term>, std::span<Term>) {
    return InternalError("a wrong length");
  };
  const Result<CompletionId> completion = Combine(inputs, &outputs);
  ASSERT_TRUE(completion.ok());
  EXPECT_EQ(Finish(*completion).message(), "a wrong length");
  engine_->Drain();

  // As good as new.
  state_.launch = nullptr;
  ASSERT_TRUE(Finish(*Combine(inputs, &outputs)).ok());
  EXPECT_EQ(reinterpret_cast<float*>(slot_)[999], 999.0f);
}

// As where the driver is too old for them, or the device too new.
TEST_F(EngineStepsTest, KernelsThatCannotBeLoadedAreDoneWithout) {
  cuda::Launchers refused = kernels_;
  refused.load = [] { return 209; };
  device_.SetKernels(&refused);
  engine_ = *DeviceEngine::Create(&device_, 1, ends_[0].get(), &regions_, {2 * kBytes, 2 * kBytes});
  Begin(false);
  state_.launch = [](DeviceWork*, std::span<const Term>, std::span<Term>) {
    return InternalError("there are no kernels");
  };
  const std::vector<Term> inputs = {Input(input_)};
  std::vector<Term> outputs = {Sum(slot_, 1)};
  ASSERT_TRUE(Finish(*Combine(inputs, &outputs)).ok());
  EXPECT_EQ(reinterpret_cast<float*>(slot_)[999], 999.0f);
  engine_.reset();
  device_.SetKernels(&kernels_);
}

TEST_F(EngineStepsTest, WithoutKernelsElementsGoByTheHost) {
  std::vector<float> peer(kCount, 0.5f);
  auto* const theirs = reinterpret_cast<std::byte*>(peer.data());
  std::vector<std::byte> far(kBytes);  // which the device does not reach
  for (std::byte* result : {slot_, far.data()}) {
    std::memset(device_.Reach(output_), 0, kBytes);
    const std::vector<Term> inputs = {Sum(theirs, 1), Input(input_)};
    std::vector<Term> outputs = {Outcome(result), Output(output_)};
    ASSERT_TRUE(Finish(*Combine(inputs, &outputs)).ok());
    EXPECT_EQ(reinterpret_cast<float*>(result)[10], 10.5f);
    EXPECT_EQ(Value(output_, 999), 999.5f);
    EXPECT_EQ(outputs[0].bytes, kBytes);
  }
  // A peer with a registered buffer in memory of the host wants the result there, too.
  std::vector<float> host(kCount);
  const std::vector<Term> inputs = {Sum(theirs, 1), Input(input_)};
  std::vector<Term> outputs = {Outcome(slot_), Output(reinterpret_cast<std::byte*>(host.data())),
                               Output(output_)};
  state_.launch = [](DeviceWork*, std::span<const Term>, std::span<Term>) {
    return InternalError("kernels do not reach it");
  };
  ASSERT_TRUE(Finish(*Combine(inputs, &outputs)).ok());
  EXPECT_EQ(host[999], 999.5f);
  EXPECT_EQ(Value(output_, 1), 1.5f);
}

TEST_F(EngineStepsTest, ASmallInputIsBroughtOnce) {
  std::vector<float> peer(kCount, 0.5f);
  const uint64_t before = device_.copies;
  Begin(true);
  std::vector<Term> sent = {Sum(slot_, 1)};
  ASSERT_TRUE(Finish(*Combine({Input(input_)}, &sent)).ok());
  EXPECT_EQ(reinterpret_cast<float*>(slot_)[999], 999.0f);
  std::vector<Term> result = {Output(output_)};
  const Result<CompletionId> completion =
      Combine({Sum(reinterpret_cast<std::byte*>(peer.data()), 1), Input(input_)}, &result);
  ASSERT_TRUE(Finish(*completion).ok());
  EXPECT_EQ(Value(output_, 999), 999.5f);
  EXPECT_EQ(device_.copies - before, 2u);
}

TEST_F(EngineStepsTest, StepsWithoutElementsAreDoneAtOnce) {
  std::vector<float> from(kCount, 2.0f), to(kCount);
  const std::vector<Term> inputs = {Outcome(reinterpret_cast<std::byte*>(from.data()))};
  std::vector<Term> outputs = {Outcome(reinterpret_cast<std::byte*>(to.data()))};
  EXPECT_EQ(*Combine(inputs, &outputs), 0u);
  EXPECT_EQ(to[999], 2.0f);
}

// Completions of several strands at once, and what is on the device in between.
TEST_F(EngineStepsTest, SeveralAtOnceAndDrained) {
  device_.HoldQueues(true);
  const std::vector<Term> inputs = {Input(input_)};
  std::vector<float> other(kCount);
  std::vector<Term> first = {Sum(slot_, 1)};
  std::vector<Term> second = {Sum(reinterpret_cast<std::byte*>(other.data()), 1)};
  const CompletionId a = *Combine(inputs, &first);
  const CompletionId b = *Combine(inputs, &second);
  ASSERT_NE(a, b);
  EXPECT_FALSE(*engine_->Done(a));
  EXPECT_FALSE(*engine_->Done(b));
  std::thread release([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    device_.HoldQueues(false);
  });
  engine_->Drain();
  EXPECT_EQ(device_.running, 0);
  EXPECT_EQ(device_.copies, 2u);
  release.join();
  ASSERT_TRUE(Finish(*Combine(inputs, &second)).ok());
  EXPECT_EQ(other[999], 999.0f);
}

}  // namespace
}  // namespace inccl::test
