// SPDX-License-Identifier: Apache-2.0
//
// Entropy-coded fields: the lengths of codes, the costs and the payloads of the definition
// (hbi_entropy_test.py), fields that come back as they were, and bytes that no encoder writes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <vector>

#include "build_paths.h"
#include "compress/hbi/entropy.h"
#include "compress/kernels/hbi_kernels.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

using hbi::EntropyDecode;
using hbi::EntropyEncode;

uint32_t Crc32(std::span<const uint8_t> bytes) {
  uint32_t crc = ~0u;
  for (const uint8_t byte : bytes) {
    crc ^= byte;
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc % 2 != 0 ? 0xedb88320u : 0);
  }
  return ~crc;
}

std::vector<std::string> GoldenLines(const std::string& kind) {
  std::ifstream file(INCCL_SOURCE_DIR "/tests/compress/hbi_entropy.txt");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(kind + ' ', 0) == 0) lines.push_back(line.substr(kind.size() + 1));
  }
  EXPECT_FALSE(lines.empty());
  return lines;
}

size_t FieldBytes(std::span<const uint16_t> levels) {
  size_t bytes = 0;
  for (const uint16_t k : levels) bytes += hbi::PackedBytes(hbi::Width(1, k));
  return bytes;
}

// At the very end of its memory, so that a sanitizer sees a byte too many.
struct Exact {
  explicit Exact(size_t size) : bytes(size), memory(new uint8_t[size]) {}
  explicit Exact(std::span<const uint8_t> of) : Exact(of.size()) {
    std::copy(of.begin(), of.end(), memory.get());
  }
  std::span<uint8_t> span() const { return {memory.get(), bytes}; }
  size_t bytes;
  std::unique_ptr<uint8_t[]> memory;
};

bool Decodes(std::span<const uint16_t> levels, std::span<const uint8_t> payload,
             std::vector<uint8_t>* fields = nullptr) {
  const Exact in(payload), out(FieldBytes(levels));
  const bool valid = EntropyDecode(Team::Alone(), hbi::BestKernels(), levels, in.memory.get(),
                                   in.bytes, out.memory.get());
  if (fields != nullptr) fields->assign(out.span().begin(), out.span().end());
  return valid;
}

std::vector<uint8_t> Encoded(std::span<const uint16_t> levels, std::vector<uint8_t> fields) {
  fields.resize(fields.size() + hbi::kReadSlack);
  const Exact in(fields), out(FieldBytes(levels) + hbi::HeadBytes(levels.size()));
  const size_t bytes =
      EntropyEncode(Team::Alone(), hbi::BestKernels(), levels, in.memory.get(), out.memory.get());
  EXPECT_LE(bytes, out.bytes);
  return {out.memory.get(), out.memory.get() + bytes};
}

// Packed fields of normal values, `spread` their standard deviation over the scale.
std::vector<uint8_t> Fields(std::span<const uint16_t> levels, double spread, std::mt19937_64* rng) {
  std::vector<uint8_t> fields(FieldBytes(levels) + hbi::kWriteSlack);
  uint8_t* at = fields.data();
  std::normal_distribution<double> normal(0, spread);
  for (const uint16_t k : levels) {
    if (k == 0) continue;
    uint16_t values[kSuperblock];
    for (uint16_t& value : values) {
      value = static_cast<uint16_t>(std::clamp(std::lround(k + k * normal(*rng)), 0L, 2L * k));
    }
    hbi::ScalarKernels().pack(values, hbi::Width(1, k), at, 1);
    at += hbi::PackedBytes(hbi::Width(1, k));
  }
  fields.resize(FieldBytes(levels));
  return fields;
}

TEST(HbiEntropy, CodesOfTheDefinition) {
  for (const std::string& line : GoldenLines("code")) {
    std::istringstream in(line);
    uint32_t k = 0, crc = 0;
    in >> k >> crc;
    std::vector<uint8_t> lengths;
    for (uint32_t shape = 0; shape < hbi::kShapes; ++shape) {
      const hbi::CodeLengths of = hbi::LengthsOf(k, shape);
      lengths.insert(lengths.end(), of.bits.begin(), of.bits.begin() + of.letters);
      uint32_t cost = 0;
      in >> cost;
      EXPECT_EQ(hbi::Cost64(k, shape), cost) << "K " << k << ", shape " << shape;
    }
    EXPECT_EQ(Crc32(lengths), crc) << "K " << k;
  }
}

TEST(HbiEntropy, PayloadsOfTheDefinition) {
  for (const std::string& line : GoldenLines("payload")) {
    std::istringstream in(line);
    std::string levels_text, hex;
    uint32_t crc = 0;
    in >> levels_text >> crc >> hex;
    std::vector<uint16_t> levels;
    std::istringstream list(levels_text);
    for (std::string k; std::getline(list, k, ',');) {
      levels.push_back(static_cast<uint16_t>(std::stoul(k)));
    }
    std::vector<uint8_t> payload, fields;
    for (size_t i = 0; i < hex.size(); i += 2) {
      payload.push_back(static_cast<uint8_t>(std::stoul(hex.substr(i, 2), nullptr, 16)));
    }
    ASSERT_TRUE(Decodes(levels, payload, &fields)) << line;
    EXPECT_EQ(Crc32(fields), crc) << line;
  }
}

TEST(HbiEntropy, FieldsComeBack) {
  std::mt19937_64 rng(TestSeed());
  for (int round = 0; round < 400; ++round) {
    std::vector<uint16_t> levels(1 + rng() % 70);
    const uint64_t most = uint64_t{1} << (1 + rng() % 12), dead = rng() % 4;
    for (uint16_t& k : levels) {
      k = rng() % 8 < dead ? 0 : static_cast<uint16_t>(std::min<uint64_t>(1 + rng() % most, 4095));
    }
    const double spread = std::exp2(-static_cast<double>(rng() % 60) / 10);
    const std::vector<uint8_t> fields = Fields(levels, spread, &rng);
    const std::vector<uint8_t> payload = Encoded(levels, fields);
    std::vector<uint8_t> back;
    ASSERT_TRUE(Decodes(levels, payload, &back)) << "round " << round;
    ASSERT_EQ(back, fields) << "round " << round;
  }
}

TEST(HbiEntropy, TheBytesDoNotDependOnThreads) {
  std::mt19937_64 rng(TestSeed());
  Team team(3);
  for (const size_t superblocks : {1, 128, 129, 700, 4096}) {
    std::vector<uint16_t> levels(superblocks);
    for (uint16_t& k : levels) k = static_cast<uint16_t>(rng() % 64);
    std::vector<uint8_t> fields = Fields(levels, 0.2, &rng);
    const std::vector<uint8_t> alone = Encoded(levels, fields);
    const size_t size = fields.size();
    fields.resize(size + hbi::kReadSlack);
    std::vector<uint8_t> payload(size + hbi::HeadBytes(superblocks)), back(size);
    payload.resize(EntropyEncode(&team, hbi::BestKernels(), levels, fields.data(), payload.data()));
    EXPECT_EQ(payload, alone) << superblocks;
    ASSERT_TRUE(EntropyDecode(&team, hbi::BestKernels(), levels, payload.data(), payload.size(),
                              back.data()));
    EXPECT_TRUE(std::equal(back.begin(), back.end(), fields.begin())) << superblocks;
    payload.back() ^= 0xff;
    EXPECT_FALSE(EntropyDecode(&team, hbi::BestKernels(), levels, payload.data(),
                               payload.size() - 1, back.data()));
  }
}

// The lengths that a plan counts on are those of data of that shape.
TEST(HbiEntropy, CostsAreThoseOfTheirData) {
  std::mt19937_64 rng(TestSeed());
  for (const uint16_t k : {3, 7, 15, 31, 63, 127}) {
    const std::vector<uint16_t> levels(64, k);
    const std::vector<uint8_t> fields = Fields(levels, 0.297, &rng);
    const double bits = 8.0 * static_cast<double>(Encoded(levels, fields).size()) /
                        (static_cast<double>(levels.size()) * kSuperblock);
    EXPECT_NEAR(bits, hbi::Cost64(k, 5) / 64.0, 0.1) << "K " << k;  // 2^(-7 / 4)
    EXPECT_LT(bits, hbi::Width(1, k) / 2.0 - 0.3) << "K " << k;
  }
}

TEST(HbiEntropy, BytesThatNoEncoderWrites) {
  std::mt19937_64 rng(TestSeed());
  for (int round = 0; round < 60; ++round) {
    std::vector<uint16_t> levels(1 + rng() % 40);
    for (uint16_t& k : levels) k = static_cast<uint16_t>(rng() % 40);
    const std::vector<uint8_t> payload = Encoded(levels, Fields(levels, 0.2, &rng));
    for (size_t bytes = 0; bytes < payload.size(); bytes += 1 + rng() % 7) {
      EXPECT_FALSE(Decodes(levels, std::span(payload).first(bytes)));
    }
    std::vector<uint8_t> longer = payload;
    longer.push_back(0);
    EXPECT_FALSE(Decodes(levels, longer));
    // A changed bit may give other fields. Nothing may leave its memory.
    for (int i = 0; i < 50; ++i) {
      std::vector<uint8_t> changed = payload;
      if (changed.empty()) break;
      for (uint64_t flips = 1 + rng() % 4; flips > 0; --flips) {
        const uint64_t bit = rng() % (8 * changed.size());
        changed[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
      }
      Decodes(levels, changed);
    }
    std::vector<uint8_t> noise(payload.size());
    for (uint8_t& byte : noise) byte = static_cast<uint8_t>(rng());
    Decodes(levels, noise);
  }
}

// The bits of a superblock's code, K = 3.
uint64_t BitsOf(std::span<const uint8_t> fields, uint32_t shape) {
  const hbi::CodeLengths lengths = hbi::LengthsOf(3, shape);
  const auto value = [&](size_t i) {
    return (fields[3 * i / 8] | (3 * i / 8 + 1 < fields.size() ? fields[3 * i / 8 + 1] << 8 : 0)) >>
               (3 * i % 8) &
           7;
  };
  uint64_t bits = 0;
  for (size_t i = 0; i < kSuperblock; i += 2) {
    bits += lengths.bits[static_cast<size_t>(value(i) + 7 * value(i + 1))];
  }
  return bits;
}

TEST(HbiEntropy, BitsBehindTheLastCodeAreZero) {
  std::mt19937_64 rng(TestSeed());
  const std::vector<uint16_t> levels(1, 3);
  for (int round = 0, seen = 0; seen < 20; ++round) {
    ASSERT_LT(round, 1000);
    const std::vector<uint8_t> fields = Fields(levels, 0.2, &rng);
    std::vector<uint8_t> payload = Encoded(levels, fields);
    const uint64_t bits = BitsOf(fields, payload[1] >> 4);
    ASSERT_EQ(payload.size(), hbi::kHeadBytes + (bits + 7) / 8);
    if (bits % 8 == 0) continue;
    payload.back() |= 0x80;
    EXPECT_FALSE(Decodes(levels, payload));
    ++seen;
  }
}

}  // namespace
}  // namespace inccl::test
