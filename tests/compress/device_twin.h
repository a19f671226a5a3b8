// SPDX-License-Identifier: Apache-2.0
//
// A codec's state twice: one works on memory of the host, the other on a fake device, by Launch and
// Complete. Whatever is asked of the pair is asked of both, and what they make must be the same:
// bytes, lengths, errors. The device's elements are where the processor cannot touch them; payloads
// lie in slots that the device reaches or does not.
#ifndef INCCL_TESTS_COMPRESS_DEVICE_TWIN_H_
#define INCCL_TESTS_COMPRESS_DEVICE_TWIN_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "compress/codec.h"
#include "compress/device_work.h"
#include "fakes/fake_device.h"
#include "fakes/fake_kernels.h"

namespace inccl::test {

inline constexpr uint8_t kUntouched = 0xa7;

// The device, and what is kept there for all.
class DeviceBench {
 public:
  static constexpr size_t kRegion = size_t{1} << 19;

  DeviceBench() { device.SetKernels(&FakeKernels()); }

  // Of kRegion bytes, in memory of the device.
  std::byte* Take() {
    if (regions_.empty()) return device.Allocate(kRegion);
    std::byte* const region = regions_.back();
    regions_.pop_back();
    return region;
  }
  void GiveBack(std::byte* region) { regions_.push_back(region); }

  const std::byte* Constant(std::span<const std::byte> bytes,
                            const std::shared_ptr<const void>& owner) {
    auto& [kept, there] = constants_[bytes.data()];
    if (there == nullptr) {
      kept = owner;
      there = device.Allocate(bytes.size());
      std::memcpy(device.Reach(there), bytes.data(), bytes.size());
    }
    return there;
  }
  size_t constants() const { return constants_.size(); }

  FakeDevice device{size_t{512} << 20};
  void* const stream = device.MakeStream();

 private:
  std::vector<std::byte*> regions_;
  std::map<const std::byte*, std::pair<std::shared_ptr<const void>, std::byte*>> constants_;
};

// Bytes between guards, in pages of the host that the device reaches, or not.
class GuardedBytes {
 public:
  static constexpr size_t kGuard = 64;

  GuardedBytes(DeviceBench* bench, size_t bytes, bool reached, size_t offset = 0)
      : bench_(bench),
        reached_(reached),
        whole_((bytes + offset + 2 * kGuard + 4095) / 4096 * 4096),
        first_(kGuard + offset),
        bytes_(bytes),
        memory_(reached ? *bench->device.AllocateHost(whole_)
                        : static_cast<std::byte*>(std::aligned_alloc(4096, whole_))) {
    std::memset(memory_, kUntouched, whole_);
  }
  ~GuardedBytes() {
    EXPECT_TRUE(UntouchedFrom(bytes_)) << "written behind " << bytes_ << " bytes";
    for (size_t i = 0; i < first_; ++i) {
      if (memory_[i] != std::byte{kUntouched}) ADD_FAILURE() << "written before the bytes";
    }
    if (reached_) bench_->device.FreeHost(memory_);
    if (!reached_) std::free(memory_);
  }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  std::byte* data() const { return memory_ + first_; }
  bool UntouchedFrom(size_t byte) const {
    return std::all_of(memory_ + first_ + byte, memory_ + whole_,
                       [](std::byte b) { return b == std::byte{kUntouched}; });
  }

 private:
  DeviceBench* const bench_;
  const bool reached_;
  const size_t whole_, first_, bytes_;
  std::byte* const memory_;
};

class BenchWork final : public DeviceWork {
 public:
  explicit BenchWork(DeviceBench* bench) : bench_(bench) {}

  Result<std::byte*> Scratch(size_t bytes) override {
    if (fails_ == 0) return SystemError("no scratch today");
    --fails_;
    // Aligned to 256 bytes.
    scratch_.push_back(std::make_unique<GuardedBytes>(bench_, bytes, true, 192));
    return scratch_.back()->data();
  }
  bool OnDevice(const std::byte* memory, size_t /*bytes*/) const override {
    return bench_->device.DeviceOf(memory) >= 0;
  }
  std::byte* Reach(const std::byte* host, size_t bytes) override {
    EXPECT_GT(bytes, 0u);
    return static_cast<std::byte*>(bench_->device.AddressOf(0, host));
  }
  Result<const std::byte*> Constant(std::span<const std::byte> bytes,
                                    const std::shared_ptr<const void>& owner) override {
    return bench_->Constant(bytes, owner);
  }
  Status Run(
      const std::function<int(const cuda::Launchers& kernels, void* stream)>& launch) override {
    ++runs_;
    if (launch(FakeKernels(), bench_->stream) != 0) return SystemError("not launched");
    return Status::Ok();
  }
  int runs() const { return runs_; }
  void FailAfter(int scratches) { fails_ = scratches; }

 private:
  DeviceBench* const bench_;
  int runs_ = 0, fails_ = -1;
  std::vector<std::unique_ptr<GuardedBytes>> scratch_;
};

// How terms lie in memory.
struct Places {
  bool slots_reached = true;
  size_t slot_offset = 0;      // from a multiple of 64
  size_t elements_beside = 0;  // likewise, in elements
  bool interleaved = false;    // up to three Combines are under way at once
  bool zero_copy = false;      // payloads, too, are in memory of the device
};

// One Combine on the device, from Launch to Complete.
class DeviceCombine {
 public:
  DeviceCombine(DeviceBench* bench, const Places& places, DataType type, const Range& range,
                std::span<const Term> inputs, std::span<const Term> outputs)
      : bench_(bench), range_(range), work_(bench), bytes_(range.count * SizeOf(type)) {
    const size_t beside = GuardedBytes::kGuard + places.elements_beside * SizeOf(type);
    for (const Term& input : inputs) {
      Term& term = inputs_.emplace_back(input);
      if (input.format.form == Form::kInput || places.zero_copy) {
        elements_ = true;
        term.data = Region() + beside;
        if (input.data != nullptr) {
          std::memcpy(bench->device.Reach(term.data), input.data,
                      std::min<size_t>(input.bytes, bytes_));
          there_[input.data] = term.data;
        }
      } else {
        term.data = Slot(input, places);
        if (input.bytes != 0) std::memcpy(term.data, input.data, input.bytes);
      }
    }
    for (const Term& output : outputs) {
      Term& term = outputs_.emplace_back(output);
      if (output.format.form == Form::kOutput || places.zero_copy) {
        elements_ = true;
        const auto in_place = there_.find(output.data);
        term.data = in_place != there_.end() ? in_place->second : Region() + beside;
      } else if (output.data != nullptr) {
        term.data = Slot(output, places);
      }
    }
  }
  ~DeviceCombine() {
    for (std::byte* region : regions_) bench_->GiveBack(region);
  }
  DeviceCombine(const DeviceCombine&) = delete;
  DeviceCombine& operator=(const DeviceCombine&) = delete;

  bool has_elements() const { return elements_; }
  bool is_side() const { return outputs_[0].format.form == Form::kSide; }
  BenchWork& work() { return work_; }
  std::vector<Term>& outputs() { return outputs_; }

  Result<bool> Launch(CodecState* state) {
    return state->Launch(range_, inputs_, outputs_, &work_);
  }
  // Where it has no elements, or no kernels: those are copied then.
  Status OnHost(CodecState* state) {
    std::vector<std::vector<std::byte>> copies;
    std::vector<Term> inputs = inputs_, outputs = outputs_;
    for (auto* terms : {&inputs, &outputs}) {
      for (Term& term : *terms) {
        if (!IsThere(term)) continue;
        copies.emplace_back(bytes_);
        std::memcpy(copies.back().data(), bench_->device.Reach(term.data), bytes_);
        term.data = copies.back().data();
      }
    }
    const Status status = state->Combine(range_, inputs, outputs);
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs_[i].bytes = outputs[i].bytes;
      if (!IsThere(outputs_[i])) continue;
      std::memcpy(bench_->device.Reach(outputs_[i].data), outputs[i].data, bytes_);
    }
    return status;
  }
  Status Complete(CodecState* state) {
    bench_->device.Synchronize(bench_->stream);
    return state->Complete(range_, inputs_, outputs_, &work_);
  }

  // What is expected of the outputs, before their memory is used for something else.
  void Expect(std::span<const Term> made) {
    for (const Term& term : made) {
      expected_.emplace_back(term.data, term.data == nullptr ? term.data : term.data + term.bytes);
      lengths_.push_back(term.bytes);
    }
  }
  void Check() {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Term& term = outputs_[i];
      ASSERT_EQ(term.bytes, lengths_[i]) << "length of output " << i;
      if (term.data == nullptr) continue;
      const std::byte* const found = IsThere(term) ? bench_->device.Reach(term.data) : term.data;
      for (size_t b = 0; b < expected_[i].size(); ++b) {
        ASSERT_EQ(found[b], expected_[i][b])
            << "output " << i << ", byte " << b << " of " << expected_[i].size();
      }
    }
    for (std::byte* region : regions_) CheckRegion(region);
    if (work_.runs() == 0) return;  // the processor may write up to a payload's capacity
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Term& term = outputs_[i];
      if (slot_of_[term.data] == nullptr) continue;
      EXPECT_TRUE(slot_of_[term.data]->UntouchedFrom(term.bytes)) << "output " << i;
    }
  }

 private:
  bool IsThere(const Term& term) const { return bench_->device.DeviceOf(term.data) >= 0; }
  std::byte* Region() {
    std::byte* const region = bench_->Take();
    regions_.push_back(region);
    std::memset(bench_->device.Reach(region), kUntouched, bytes_ + kAround);
    return region;
  }
  std::byte* Slot(const Term& term, const Places& places) {
    slots_.push_back(std::make_unique<GuardedBytes>(bench_, term.bytes, places.slots_reached,
                                                    places.slot_offset));
    slot_of_[slots_.back()->data()] = slots_.back().get();
    return slots_.back()->data();
  }
  // Around its elements, which one of the terms says where they are.
  void CheckRegion(std::byte* region) {
    const std::byte* first = nullptr;
    for (const auto* terms : {&inputs_, &outputs_}) {
      for (const Term& term : *terms) {
        if (term.data >= region && term.data < region + DeviceBench::kRegion) first = term.data;
      }
    }
    const auto before = static_cast<size_t>(first - region);
    const std::byte* const memory = bench_->device.Reach(region);
    for (size_t b = 0; b < bytes_ + kAround; ++b) {
      if (b >= before && b < before + bytes_) continue;
      ASSERT_EQ(memory[b], std::byte{kUntouched}) << "byte " << b << " beside elements";
    }
  }

  static constexpr size_t kAround = 3 * GuardedBytes::kGuard;
  DeviceBench* const bench_;
  const Range range_;
  BenchWork work_;
  const size_t bytes_;  // of elements
  bool elements_ = false;
  std::map<const std::byte*, std::byte*> there_;  // inputs
  std::vector<Term> inputs_, outputs_;
  std::vector<std::byte*> regions_;
  std::vector<std::unique_ptr<GuardedBytes>> slots_;
  std::map<const std::byte*, GuardedBytes*> slot_of_;
  std::vector<std::vector<std::byte>> expected_;
  std::vector<uint32_t> lengths_;
};

class TwinState final : public CodecState {
 public:
  TwinState(DeviceBench* bench, const Places& places, std::unique_ptr<CodecState> on_host,
            std::unique_ptr<CodecState> on_device, uint64_t seed)
      : bench_(bench),
        places_(places),
        on_host_(std::move(on_host)),
        on_device_(std::move(on_device)),
        rng_(seed) {}

  Status Begin(const CollectiveArgs& call) override {
    type_ = call.type;
    const Status status = on_host_->Begin(call);
    EXPECT_EQ(on_device_->Begin(call).message(), status.message());
    return status;
  }

  Status Combine(const Range& range, std::span<const Term> inputs,
                 std::span<Term> outputs) override {
    auto combine = std::make_unique<DeviceCombine>(bench_, places_, type_, range, inputs, outputs);
    if (!combine->is_side()) LandSides();
    const Status status = on_host_->Combine(range, inputs, outputs);
    combine->Expect(outputs);
    Result<bool> launched = false;
    if (combine->has_elements()) launched = combine->Launch(on_device_.get());
    if (!launched.ok() || !status.ok()) {
      const Status found = launched.ok() ? combine->OnHost(on_device_.get()) : launched.status();
      EXPECT_EQ(found.message(), status.message());
      EXPECT_EQ(found.code(), status.code());
      errors_ += launched.ok() ? 0 : 1;
      return status;
    }
    if (!*launched) {
      (combine->has_elements() ? refused_ : without_elements_) += 1;
      EXPECT_EQ(combine->work().runs(), 0);
      EXPECT_TRUE(combine->OnHost(on_device_.get()).ok());
      combine->Check();
      return status;
    }
    ++launched_;
    EXPECT_EQ(combine->work().runs(), 1);
    pending_.push_back(std::move(combine));
    while (pending_.size() > (places_.interleaved ? rng_.Below(4) : 0)) LandOne();
    return status;
  }

  void Finish(CodecStats* stats) override {
    while (!pending_.empty()) LandOne();
    CodecStats found;
    on_device_->Finish(stats == nullptr ? nullptr : &found);
    on_host_->Finish(stats);
    if (stats == nullptr) return;
    EXPECT_EQ(found.error_bound, stats->error_bound);
    EXPECT_EQ(found.zero_blocks, stats->zero_blocks);
    EXPECT_EQ(found.dropped_superblocks, stats->dropped_superblocks);
    EXPECT_EQ(found.poisoned_blocks, stats->poisoned_blocks);
  }

  // Combines with elements, by how they went.
  int launched() const { return launched_; }
  int refused() const { return refused_; }
  int errors() const { return errors_; }
  int without_elements() const { return without_elements_; }

 private:
  // Any of them: they are of other ranges or forms.
  void LandOne() {
    const auto which = pending_.begin() + static_cast<std::ptrdiff_t>(rng_.Below(pending_.size()));
    const std::unique_ptr<DeviceCombine> combine = std::move(*which);
    pending_.erase(which);
    const Status status = combine->Complete(on_device_.get());
    EXPECT_TRUE(status.ok()) << status.message();
    combine->Check();
  }
  // Data need the codes.
  void LandSides() {
    const auto is_side = [](const auto& combine) { return combine->is_side(); };
    while (std::any_of(pending_.begin(), pending_.end(), is_side)) LandOne();
  }

  DeviceBench* const bench_;
  const Places places_;
  std::unique_ptr<CodecState> on_host_, on_device_;
  Rng rng_;
  DataType type_ = DataType::kFloat32;
  std::deque<std::unique_ptr<DeviceCombine>> pending_;
  int launched_ = 0, refused_ = 0, errors_ = 0, without_elements_ = 0;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_COMPRESS_DEVICE_TWIN_H_
