// SPDX-License-Identifier: Apache-2.0
//
// All ranks of one compressed call in one process, without lanes or executor: the states of the
// codec are driven through the folds of an algorithm, slice by slice.
#ifndef INCCL_TESTS_COMPRESS_HBI_DRIVER_H_
#define INCCL_TESTS_COMPRESS_HBI_DRIVER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "compress/codec.h"

namespace inccl::test {

using Payload = std::vector<std::byte>;

// kGroups: direct, with the sums of groups of `group` ranks taken inside the groups.
enum class Way { kTwoShot, kRing, kDoubling, kGroups };

class HbiDriver {
 public:
  HbiDriver(const std::string& spec, int nranks, DataType type, ReduceOp op, uint64_t count,
            uint64_t seed = 0, uint64_t step = 0, Collective collective = Collective::kAllReduce)
      : collective_(collective), n_(nranks), count_(count), size_(SizeOf(type)) {
    Result<std::shared_ptr<const Codec>> codec = MakeCodec(spec);
    EXPECT_TRUE(codec.ok()) << codec.status().message();
    codec_ = *codec;
    for (int r = 0; r < n_; ++r) {
      states_.push_back(codec_->NewState());
      descs_.push_back({.collective = collective,
                        .type = type,
                        .op = op,
                        .nranks = n_,
                        .rank = r,
                        .count = count,
                        .seed = seed,
                        .step = step});
      states_.back()->set_non_temporal(r % 2 == 1, r % 3 != 1);  // hints, which change no bit
    }
  }

  const Codec& codec() const { return *codec_; }
  CodecState& state(int rank) { return *states_[static_cast<size_t>(rank)]; }

  // Puts wrap(state) in the place of every rank's state.
  template <typename Wrapper>
  void Wrap(const Wrapper& wrap) {
    for (std::unique_ptr<CodecState>& state : states_) state = wrap(std::move(state));
  }

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
      if (!codec_->side_phases().empty()) Agree(window, end, inputs);
      // The window's parts: whole superblocks, dealt evenly.
      const uint64_t superblocks = (end - window + kSuperblock - 1) / kSuperblock;
      uint64_t first = window;
      for (int owner = 0; owner < n_; ++owner) {
        const auto n = static_cast<uint64_t>(n_), p = static_cast<uint64_t>(owner);
        const uint64_t mine = superblocks / n + (p < superblocks % n ? 1 : 0);
        const uint64_t last = std::min(end, first + mine * kSuperblock);
        for (uint64_t at = first; at < last; at += slice) {
          const Range range{0, at, static_cast<uint32_t>(std::min<uint64_t>(slice, last - at))};
          if (way == Way::kTwoShot) Direct(owner, range, inputs, outputs);
          if (way == Way::kGroups) Groups(owner, range, inputs, outputs);
          if (way == Way::kRing) Ring(owner, range, inputs, outputs);
          if (way == Way::kDoubling) Doubling(range, inputs, outputs);
        }
        first = last;
      }
    }
  }

  // Reduce-scatter: segment r is summed up for rank r.
  void RunReduceScatter(Way way, uint32_t slice, const std::vector<std::byte*>& inputs,
                        const std::vector<std::byte*>& outputs) {
    Begin();
    ForEachWindow([&](uint32_t segment, uint64_t first, uint64_t end) {
      if (!codec_->side_phases().empty()) Agree(first, end, inputs, segment);
      ForEachSlice(segment, first, end, slice, [&](const Range& range) {
        const int owner = static_cast<int>(segment);
        const std::vector<Term> terms =
            way == Way::kTwoShot ? Deal(owner, range, inputs) : Chain(owner, range, inputs);
        std::vector<Term> made = {Out(owner, range, outputs)};
        Must(owner, range, terms, &made);
      });
    });
  }

  // All-gather: what rank r sends goes from rank to rank.
  void RunAllGather(uint32_t slice, const std::vector<std::byte*>& inputs,
                    const std::vector<std::byte*>& outputs) {
    Begin();
    ForEachWindow([&](uint32_t segment, uint64_t first, uint64_t end) {
      const int sender = static_cast<int>(segment);
      const Range all{segment, first, static_cast<uint32_t>(end - first)};
      if (!codec_->side_phases().empty()) Announce(sender, all, inputs);
      ForEachSlice(segment, first, end, slice, [&](const Range& range) {
        Payload sent(Capacity(range));
        std::vector<Term> made = {Of({Form::kResult}, &sent), Out(sender, range, outputs)};
        Must(sender, range, {In(sender, range, inputs)}, &made);
        sent.resize(made[0].bytes);
        PassOn(sender, range, sent, outputs);
      });
    });
  }

  // The codes of the sender's elements, to all.
  void Announce(int sender, const Range& range, const std::vector<std::byte*>& inputs) {
    Payload codes(SideRoom(range));
    std::vector<Term> made = {Of({Form::kSide}, &codes), {{Form::kSide}, nullptr, 0}};
    Must(sender, range, {In(sender, range, inputs)}, &made);
    codes.resize(made[0].bytes);
    for (int r = 0; r < n_; ++r) {
      if (r == sender) continue;
      side_bytes_ += codes.size();
      std::vector<Term> mine = {{{Form::kSide}, nullptr, 0}};
      Must(r, range, {Of({Form::kSide}, &codes)}, &mine);
    }
  }

  // Agreement of [first, end): rank 0 takes the maximum and spreads it.
  void Agree(uint64_t first, uint64_t end, const std::vector<std::byte*>& inputs,
             uint32_t segment = 0) {
    const Range range{segment, first, static_cast<uint32_t>(end - first)};
    std::vector<Payload> codes(static_cast<size_t>(n_));
    for (int r = 1; r < n_; ++r) {
      codes[Index(r)] = Make(r, range, {In(r, range, inputs)}, {Form::kSide}, SideRoom(range));
    }
    std::vector<Term> all;
    for (int r = 1; r < n_; ++r) all.push_back(Of({Form::kSide}, &codes[Index(r)]));
    all.push_back(In(0, range, inputs));
    Payload agreed(SideRoom(range));
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
    const bool many = collective_ == Collective::kReduceScatter;
    return Place(Form::kInput, many ? range.segment : 0, inputs[Index(rank)], range);
  }
  Term Out(int rank, const Range& range, const std::vector<std::byte*>& outputs) const {
    const bool many = collective_ == Collective::kAllGather;
    return Place(Form::kOutput, many ? range.segment : 0, outputs[Index(rank)], range);
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
  size_t SideRoom(const Range& range) const { return codec_->SideBytes(range.count); }
  static size_t SideCapacity(const Range& range) {
    return (range.count + kSuperblock - 1) / kSuperblock * 4;
  }

  void set_group(int ranks) { group_ = ranks; }

  uint64_t data_bytes() const { return data_bytes_; }  // published in all, but by Doubling
  uint64_t side_bytes() const { return side_bytes_; }  // published by Announce

 private:
  static size_t Index(int rank) { return static_cast<size_t>(rank); }

  void Must(int rank, const Range& range, const std::vector<Term>& inputs,
            std::vector<Term>* outputs) {
    const Status status = state(rank).Combine(range, inputs, *outputs);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  Term Place(Form form, uint64_t segment, std::byte* buffer, const Range& range) const {
    return {{form},
            buffer + (segment * count_ + range.first) * size_,
            static_cast<uint32_t>(range.count * size_)};
  }

  // body(segment, first, end) for every window of every segment.
  template <typename Body>
  void ForEachWindow(const Body& body) {
    for (uint32_t segment = 0; segment < static_cast<uint32_t>(n_); ++segment) {
      for (uint64_t first = 0; first < count_; first += kWindow) {
        body(segment, first, std::min<uint64_t>(count_, first + kWindow));
      }
    }
  }
  template <typename Body>
  void ForEachSlice(uint32_t segment, uint64_t first, uint64_t end, uint32_t slice,
                    const Body& body) {
    for (uint64_t at = first; at < end; at += slice) {
      body(Range{segment, at, static_cast<uint32_t>(std::min<uint64_t>(slice, end - at))});
    }
  }

  // Every rank's contribution, for the owner.
  std::vector<Term> Deal(int owner, const Range& range, const std::vector<std::byte*>& inputs) {
    parts_.assign(Index(n_), {});
    std::vector<Term> terms;
    for (int r = 0; r < n_; ++r) {
      if (r == owner) {
        terms.push_back(In(r, range, inputs));
        continue;
      }
      parts_[Index(r)] = Make(r, range, {In(r, range, inputs)}, Sum(1), Capacity(range));
      data_bytes_ += parts_[Index(r)].size();
      terms.push_back(Of(Sum(1), &parts_[Index(r)]));
    }
    return terms;
  }

  // The sum of all others, hop by hop, and the owner's own elements.
  std::vector<Term> Chain(int owner, const Range& range, const std::vector<std::byte*>& inputs) {
    parts_.assign(1, {});
    Payload& sum = parts_[0];
    const int start = (owner + 1) % n_;
    sum = Make(start, range, {In(start, range, inputs)}, Sum(1), Capacity(range));
    data_bytes_ += sum.size();
    for (int h = 2; h < n_; ++h) {
      const int r = (owner + h) % n_;
      sum = Make(r, range, {Of(Sum(h - 1), &sum), In(r, range, inputs)}, Sum(h), Capacity(range));
      data_bytes_ += sum.size();
    }
    return {Of(Sum(n_ - 1), &sum), In(owner, range, inputs)};
  }

  // From `sender` round all ranks, verbatim; each decodes it.
  void PassOn(int sender, const Range& range, Payload result,
              const std::vector<std::byte*>& outputs) {
    for (int h = 1; h < n_; ++h) {
      const int r = (sender + h) % n_;
      data_bytes_ += result.size();
      Payload forwarded(Capacity(range));
      std::vector<Term> both = {Of({Form::kResult}, &forwarded), Out(r, range, outputs)};
      Must(r, range, {Of({Form::kResult}, &result)}, &both);
      forwarded.resize(both[0].bytes);
      EXPECT_EQ(forwarded, result);
      result = forwarded;
    }
  }

  // The owner gets every rank's contribution, sums, requantizes and sends one result to all.
  void Direct(int owner, const Range& range, const std::vector<std::byte*>& inputs,
              const std::vector<std::byte*>& outputs) {
    Spread(owner, Deal(owner, range, inputs), range, outputs);
  }

  // The same, but for what the owner gets from other groups: their sums, taken at a member.
  void Groups(int owner, const Range& range, const std::vector<std::byte*>& inputs,
              const std::vector<std::byte*>& outputs) {
    parts_.assign(Index(n_), {});
    std::vector<Payload> sums(Index(n_));
    std::vector<Term> terms;
    for (int first = 0; first < n_; first += group_) {
      const int end = std::min(n_, first + group_);
      const bool own = owner >= first && owner < end;
      const int collector = own ? owner : first + owner % group_ % (end - first);
      std::vector<Term> members;
      for (int r = first; r < end; ++r) {
        if (r == collector) {
          members.push_back(In(r, range, inputs));
          continue;
        }
        Payload& part = parts_[Index(r)];
        part = Make(r, range, {In(r, range, inputs)}, Sum(1), Capacity(range));
        data_bytes_ += part.size();
        members.push_back(Of(Sum(1), &part));
      }
      if (own) {
        terms.insert(terms.end(), members.begin(), members.end());
        continue;
      }
      Payload& sum = sums[Index(first)];
      sum = Make(collector, range, members, Sum(end - first), Capacity(range));
      data_bytes_ += sum.size();
      terms.push_back(Of(Sum(end - first), &sum));
    }
    Spread(owner, terms, range, outputs);
  }

  // The owner's result, to all.
  void Spread(int owner, const std::vector<Term>& terms, const Range& range,
              const std::vector<std::byte*>& outputs) {
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
    const std::vector<Term> terms = Chain(owner, range, inputs);
    Payload result(Capacity(range));
    std::vector<Term> made = {Of({Form::kResult}, &result), Out(owner, range, outputs)};
    Must(owner, range, terms, &made);
    result.resize(made[0].bytes);
    PassOn(owner, range, result, outputs);
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

  Collective collective_;
  int n_;
  int group_ = 1;
  uint64_t count_;
  size_t size_;
  uint64_t data_bytes_ = 0;
  uint64_t side_bytes_ = 0;
  std::vector<Payload> parts_;  // of the present Deal or Chain
  std::shared_ptr<const Codec> codec_;
  std::vector<std::unique_ptr<CodecState>> states_;
  std::vector<CollectiveArgs> descs_;
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

inline std::vector<std::byte*> Memory(const std::vector<std::vector<float>>& vectors) {
  std::vector<std::byte*> memory;
  for (const std::vector<float>& x : vectors) {
    memory.push_back(reinterpret_cast<std::byte*>(const_cast<float*>(x.data())));
  }
  return memory;
}

// What every rank ends with.
inline std::vector<std::vector<float>> ReduceScatterFloat(
    HbiDriver* driver, Way way, uint32_t slice, const std::vector<std::vector<float>>& inputs) {
  const size_t count = inputs[0].size() / inputs.size();
  std::vector<std::vector<float>> results(inputs.size(), std::vector<float>(count));
  driver->RunReduceScatter(way, slice, Memory(inputs), Memory(results));
  return results;
}

inline std::vector<std::vector<float>> AllGatherFloat(
    HbiDriver* driver, uint32_t slice, const std::vector<std::vector<float>>& inputs) {
  const size_t count = inputs[0].size() * inputs.size();
  std::vector<std::vector<float>> results(inputs.size(), std::vector<float>(count));
  driver->RunAllGather(slice, Memory(inputs), Memory(results));
  return results;
}

inline bool SameBytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// CRC-32 of IEEE 802.3, as zlib computes it.
inline uint32_t Crc32(const void* data, size_t bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> remainders{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xedb88320 & (0 - (crc & 1)));
      remainders[i] = crc;
    }
    return remainders;
  }();
  uint32_t crc = 0xffffffff;
  for (size_t i = 0; i < bytes; ++i) {
    crc = (crc >> 8) ^ table[(crc ^ static_cast<const uint8_t*>(data)[i]) & 0xff];
  }
  return crc ^ 0xffffffff;
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_COMPRESS_HBI_DRIVER_H_
