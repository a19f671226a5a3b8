// SPDX-License-Identifier: Apache-2.0
//
// All ranks of one compressed all-reduce in one process, without lanes or executor: the states of
// the codec are driven through the folds of an algorithm, slice by slice.
#ifndef INCCL_TESTS_COMPRESS_HBI_DRIVER_H_
#define INCCL_TESTS_COMPRESS_HBI_DRIVER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "compress/codec.h"

namespace inccl::test {

using Payload = std::vector<std::byte>;

enum class Way { kDirect, kRing, kDoubling };

class HbiDriver {
 public:
  HbiDriver(const std::string& spec, int nranks, DataType type, ReduceOp op, uint64_t count,
            uint64_t seed = 0, uint64_t step = 0)
      : n_(nranks), count_(count), size_(SizeOf(type)) {
    Result<std::shared_ptr<const Codec>> codec = MakeCodec(spec);
    EXPECT_TRUE(codec.ok()) << codec.status().message();
    codec_ = *codec;
    for (int r = 0; r < n_; ++r) {
      states_.push_back(codec_->NewState());
      descs_.push_back({.collective = Collective::kAllReduce,
                        .type = type,
                        .op = op,
                        .nranks = n_,
                        .rank = r,
                        .count = count,
                        .seed = seed,
                        .step = step});
    }
  }

  const Codec& codec() const { return *codec_; }
  CodecState& state(int rank) { return *states_[static_cast<size_t>(rank)]; }

  void Begin() {
    for (int r = 0; r < n_; ++r) {
      const Status status = state(r).Begin(descs_[static_cast<size_t>(r)]);
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }

  // inputs[r], outputs[r]: rank r's vectors as bytes; they may be the same memory.
  void Run(Way way, uint32_t slice, const std::vector<std::byte*>& inputs,
           const std::vector<std::byte*>& outputs) {
    Begin();
    for (uint64_t window = 0; window < count_; window += kWindow) {
      const uint64_t end = std::min<uint64_t>(count_, window + kWindow);
      Agree(window, end, inputs);
      // The window's parts: whole superblocks, dealt evenly.
      const uint64_t superblocks = (end - window + kSuperblock - 1) / kSuperblock;
      uint64_t first = window;
      for (int owner = 0; owner < n_; ++owner) {
        const auto n = static_cast<uint64_t>(n_), p = static_cast<uint64_t>(owner);
        const uint64_t mine = superblocks / n + (p < superblocks % n ? 1 : 0);
        const uint64_t last = std::min(end, first + mine * kSuperblock);
        for (uint64_t at = first; at < last; at += slice) {
          const Range range{0, at, static_cast<uint32_t>(std::min<uint64_t>(slice, last - at))};
          if (way == Way::kDirect) Direct(owner, range, inputs, outputs);
          if (way == Way::kRing) Ring(owner, range, inputs, outputs);
          if (way == Way::kDoubling) Doubling(range, inputs, outputs);
        }
        first = last;
      }
    }
  }

  // Agreement of [first, end): rank 0 takes the maximum and spreads it.
  void Agree(uint64_t first, uint64_t end, const std::vector<std::byte*>& inputs) {
    const Range range{0, first, static_cast<uint32_t>(end - first)};
    std::vector<Payload> codes(static_cast<size_t>(n_));
    for (int r = 1; r < n_; ++r) {
      codes[Index(r)] = Make(r, range, {In(r, range, inputs)}, {Form::kSide}, SideCapacity(range));
    }
    std::vector<Term> all;
    for (int r = 1; r < n_; ++r) all.push_back(Of({Form::kSide}, &codes[Index(r)]));
    all.push_back(In(0, range, inputs));
    Payload agreed(SideCapacity(range));
    std::vector<Term> outputs = {Of({Form::kSide}, &agreed), {{Form::kSide}, nullptr, 0}};
    Must(0, range, all, &outputs);
    agreed.resize(outputs[0].bytes);
    for (int r = 1; r < n_; ++r) {
      std::vector<Term> mine = {{{Form::kSide}, nullptr, 0}};
      Must(r, range, {Of({Form::kSide}, &agreed)}, &mine);
    }
  }

  // The payload of one Combine with one output.
  Payload Make(int rank, const Range& range, const std::vector<Term>& inputs, const Format& format,
               size_t capacity) {
    Payload payload(capacity);
    std::vector<Term> outputs = {Of(format, &payload)};
    Must(rank, range, inputs, &outputs);
    EXPECT_LE(outputs[0].bytes, capacity);
    payload.resize(std::min<size_t>(capacity, outputs[0].bytes));
    return payload;
  }

  Term In(int rank, const Range& range, const std::vector<std::byte*>& inputs) const {
    return {{Form::kInput},
            inputs[Index(rank)] + range.first * size_,
            static_cast<uint32_t>(range.count * size_)};
  }
  Term Out(int rank, const Range& range, const std::vector<std::byte*>& outputs) const {
    Term term = In(rank, range, outputs);
    term.format.form = Form::kOutput;
    return term;
  }
  static Term Of(const Format& format, Payload* payload) {
    return {format, payload->data(), static_cast<uint32_t>(payload->size())};
  }
  static Format Sum(int contributions) {
    return {Form::kSum, static_cast<uint16_t>(contributions)};
  }
  size_t Capacity(const Range& range) const {
    return codec_->MaxBytes(descs_[0].type, n_, range.count);
  }
  static size_t SideCapacity(const Range& range) {
    return (range.count + kSuperblock - 1) / kSuperblock * (kSuperblock / kBlock);
  }

  uint64_t data_bytes() const { return data_bytes_; }  // published by Direct and Ring

 private:
  static size_t Index(int rank) { return static_cast<size_t>(rank); }

  void Must(int rank, const Range& range, const std::vector<Term>& inputs,
            std::vector<Term>* outputs) {
    const Status status = state(rank).Combine(range, inputs, *outputs);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // The owner gets every rank's contribution, sums, requantizes and sends one result to all.
  void Direct(int owner, const Range& range, const std::vector<std::byte*>& inputs,
              const std::vector<std::byte*>& outputs) {
    std::vector<Payload> sent(Index(n_));
    std::vector<Term> terms;
    for (int r = 0; r < n_; ++r) {
      if (r == owner) {
        terms.push_back(In(r, range, inputs));
        continue;
      }
      sent[Index(r)] = Make(r, range, {In(r, range, inputs)}, Sum(1), Capacity(range));
      data_bytes_ += sent[Index(r)].size();
      terms.push_back(Of(Sum(1), &sent[Index(r)]));
    }
    Payload result(Capacity(range));
    std::vector<Term> made = {Of({Form::kResult}, &result), Out(owner, range, outputs)};
    Must(owner, range, terms, &made);
    result.resize(made[0].bytes);
    for (int r = 0; r < n_; ++r) {
      if (r == owner) continue;
      data_bytes_ += result.size();
      std::vector<Term> decoded = {Out(r, range, outputs)};
      Must(r, range, {Of({Form::kResult}, &result)}, &decoded);
    }
  }

  void Ring(int owner, const Range& range, const std::vector<std::byte*>& inputs,
            const std::vector<std::byte*>& outputs) {
    const int start = (owner + 1) % n_;
    Payload sum = Make(start, range, {In(start, range, inputs)}, Sum(1), Capacity(range));
    data_bytes_ += sum.size();
    for (int h = 2; h < n_; ++h) {
      const int r = (owner + h) % n_;
      sum = Make(r, range, {Of(Sum(h - 1), &sum), In(r, range, inputs)}, Sum(h), Capacity(range));
      data_bytes_ += sum.size();
    }
    Payload result(Capacity(range));
    std::vector<Term> made = {Of({Form::kResult}, &result), Out(owner, range, outputs)};
    Must(owner, range, {Of(Sum(n_ - 1), &sum), In(owner, range, inputs)}, &made);
    result.resize(made[0].bytes);
    for (int h = 1; h < n_; ++h) {
      const int r = (owner + h) % n_;
      data_bytes_ += result.size();
      Payload forwarded(Capacity(range));
      std::vector<Term> both = {Of({Form::kResult}, &forwarded), Out(r, range, outputs)};
      Must(r, range, {Of({Form::kResult}, &result)}, &both);
      forwarded.resize(both[0].bytes);
      EXPECT_EQ(forwarded, result);
      result = forwarded;
    }
  }

  // n a power of two: sums of equal size meet, everybody ends with the full one.
  void Doubling(const Range& range, const std::vector<std::byte*>& inputs,
                const std::vector<std::byte*>& outputs) {
    std::vector<Payload> sums(Index(n_));
    for (int r = 0; r < n_; ++r) {
      sums[Index(r)] = Make(r, range, {In(r, range, inputs)}, Sum(1), Capacity(range));
    }
    for (int h = 1; h < n_; h *= 2) {
      std::vector<Payload> next(Index(n_));
      for (int r = 0; r < n_; ++r) {
        next[Index(r)] =
            Make(r, range, {Of(Sum(h), &sums[Index(r)]), Of(Sum(h), &sums[Index(r ^ h)])},
                 Sum(2 * h), Capacity(range));
      }
      sums = next;
    }
    for (int r = 0; r < n_; ++r) {
      std::vector<Term> decoded = {Out(r, range, outputs)};
      Must(r, range, {Of(Sum(n_), &sums[Index(r)])}, &decoded);
    }
  }

  int n_;
  uint64_t count_;
  size_t size_;
  uint64_t data_bytes_ = 0;
  std::shared_ptr<const Codec> codec_;
  std::vector<std::unique_ptr<CodecState>> states_;
  std::vector<CallDesc> descs_;
};

// All-reduce of fp32 vectors; every rank's result must be the same, which is returned.
inline std::vector<float> RunFloat(HbiDriver* driver, Way way, uint32_t slice,
                                   const std::vector<std::vector<float>>& inputs) {
  std::vector<std::vector<float>> results(inputs.size(), std::vector<float>(inputs[0].size()));
  std::vector<std::byte*> in, out;
  for (size_t r = 0; r < inputs.size(); ++r) {
    in.push_back(reinterpret_cast<std::byte*>(const_cast<float*>(inputs[r].data())));
    out.push_back(reinterpret_cast<std::byte*>(results[r].data()));
  }
  driver->Run(way, slice, in, out);
  for (const std::vector<float>& result : results) {
    EXPECT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * sizeof(float)), 0);
  }
  return results[0];
}

inline bool SameBytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// CRC-32 of IEEE 802.3, as zlib computes it.
inline uint32_t Crc32(const void* data, size_t bytes) {
  uint32_t crc = 0xffffffff;
  for (size_t i = 0; i < bytes; ++i) {
    crc ^= static_cast<const uint8_t*>(data)[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xedb88320 & (0 - (crc & 1)));
  }
  return crc ^ 0xffffffff;
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_COMPRESS_HBI_DRIVER_H_
