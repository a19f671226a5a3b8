// SPDX-License-Identifier: Apache-2.0
//
// The scalar reference of docs/format.md: one element at a time.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "compress/float_types.h"
#include "compress/hbi/element.h"
#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"
#include "compress/kernels/hbi_kernels.h"

namespace inccl::hbi {
namespace {

void SideWords(const float* x, size_t superblocks, float scale, uint8_t* words) {
  for (size_t s = 0; s < superblocks; ++s) {
    uint8_t codes[kBlocks];
    for (uint8_t& code : codes) {
      uint32_t largest = 0;
      for (uint32_t j = 0; j < kBlock; ++j) {
        largest = std::max(largest, std::bit_cast<uint32_t>(*x++) & 0x7fffffff);
      }
      // NaN may change its bits, but stays above infinity.
      const float scaled = std::bit_cast<float>(largest) * scale;
      code = CodeOfMagnitude(std::bit_cast<uint32_t>(scaled) & 0x7fffffff);
    }
    StoreWord(WordOf(codes), words, s);
  }
}

void SideWordsNarrow(const uint16_t* x, DataType type, size_t superblocks, uint8_t* words) {
  for (size_t s = 0; s < superblocks; ++s, x += kSuperblock, words += kWordBytes) {
    float wide[kSuperblock];
    for (uint32_t i = 0; i < kSuperblock; ++i) {
      wide[i] = type == DataType::kBfloat16 ? Bf16::Decode(x[i]) : Fp16::Decode(x[i]);
    }
    SideWords(wide, 1, 1.0f, words);
  }
}

void MergeWords(const uint8_t* from, size_t superblocks, uint8_t* words) {
  for (size_t s = 0; s < superblocks; ++s) {
    StoreWord(Merged(LoadWord(words, s), LoadWord(from, s)), words, s);
  }
}

// True if element j of block `block` changes its sign.
bool Negated(uint32_t counter, uint32_t block, uint32_t j) {
  const uint32_t hash = LowBias32(counter + block * 16 + j % 16);
  return ((j < 16 ? hash : hash >> 16) & 1) != 0;
}

// Sums and differences with strides 1, 2, 4, .. 128, in this order, then times 1/16.
void Hadamard(float* x) {
  for (uint32_t stride = 1; stride < kSuperblock; stride *= 2) {
    for (uint32_t i = 0; i < kSuperblock; ++i) {
      if ((i & stride) != 0) continue;
      const float a = x[i], b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
  for (uint32_t i = 0; i < kSuperblock; ++i) x[i] *= 1.0f / 16;
}

void Rotate(float* x, uint32_t counter) {
  for (uint32_t i = 0; i < kSuperblock; ++i) {
    if (Negated(counter, i / kBlock, i % kBlock)) x[i] = -x[i];
  }
  Hadamard(x);
}

void RotateBack(float* x, uint32_t counter) {
  Hadamard(x);
  for (uint32_t i = 0; i < kSuperblock; ++i) {
    if (Negated(counter, i / kBlock, i % kBlock)) x[i] = -x[i];
    if (std::isnan(x[i])) x[i] = std::numeric_limits<float>::quiet_NaN();
  }
}

// Moves on to the next superblock.
void Advance(QuantizeArgs* args) {
  args->x += kSuperblock;
  args->words += kWordBytes;
  args->counter += kSuperblock / 2;
}

// Calls body(arguments of one superblock, its tile).
template <typename Body>
void ForEachSuperblock(const QuantizeArgs& args, uint16_t* tile, Body body) {
  QuantizeArgs one = args;
  for (uint32_t s = 0; s < args.superblocks; ++s, Advance(&one), tile += kSuperblock) {
    body(one, tile);
  }
}

template <typename Store>
void QuantizeWithHash(const QuantizeArgs& args, Store store) {
  const uint32_t word = LoadWord(args.words, 0);
  for (uint32_t i = 0; i < kSuperblock; ++i) {
    const uint32_t block = i / kBlock, j = i % kBlock;
    const uint32_t hash = LowBias32(args.counter + block * 16 + j % 16);
    const uint32_t offset = RoundingOffset(hash, j, args.offsets);
    const float factor = args.factor[CodeOf(word, block)];
    store(i, static_cast<uint16_t>(QuantizeElement(args.x[i], factor, args.k, offset)));
  }
}

void Quantize(const QuantizeArgs& args, uint16_t* tile) {
  ForEachSuperblock(args, tile, [](const QuantizeArgs& one, uint16_t* out) {
    QuantizeWithHash(one, [out](uint32_t i, uint16_t code) { out[i] = code; });
  });
}

void QuantizeAdd(const QuantizeArgs& args, uint16_t* tile) {
  ForEachSuperblock(args, tile, [](const QuantizeArgs& one, uint16_t* out) {
    QuantizeWithHash(
        one, [out](uint32_t i, uint16_t code) { out[i] = static_cast<uint16_t>(out[i] + code); });
  });
}

void QuantizeNearest(const QuantizeArgs& args, uint16_t* tile) {
  ForEachSuperblock(args, tile, [](const QuantizeArgs& one, uint16_t* out) {
    const uint32_t word = LoadWord(one.words, 0);
    for (uint32_t i = 0; i < kSuperblock; ++i) {
      const float factor = one.factor[CodeOf(word, i / kBlock)];
      out[i] = static_cast<uint16_t>(QuantizeElement(one.x[i], factor, one.k, kRoundHalfUp));
    }
  });
}

// Reads `count` fields of `bits` bits.
void ReadFields(const uint8_t* in, uint32_t bits, uint32_t count, uint16_t* fields) {
  uint64_t pending = 0;
  uint32_t have = 0;
  for (uint32_t i = 0; i < count; ++i) {
    for (; have < bits; have += 8) pending |= uint64_t{*in++} << have;
    fields[i] = static_cast<uint16_t>(pending & ((1u << bits) - 1));
    pending >>= bits;
    have -= bits;
  }
}

void WriteFields(const uint16_t* fields, uint32_t bits, uint32_t count, uint8_t* out) {
  uint64_t pending = 0;
  uint32_t have = 0;
  for (uint32_t i = 0; i < count; ++i) {
    pending |= uint64_t{fields[i]} << have;
    for (have += bits; have >= 8; have -= 8) {
      *out++ = static_cast<uint8_t>(pending);
      pending >>= 8;
    }
  }
}

// The element of the lower value of a pair; the upper one is that of the next block.
constexpr uint32_t LowerOfPair(uint32_t pair) { return pair / kBlock * 2 * kBlock + pair % kBlock; }

template <typename Store>
void UnpackFields(const uint8_t* in, uint32_t width, Store store) {
  uint16_t fields[kSuperblock];
  const uint32_t base = PairBase(width);
  if (base == 0) {
    ReadFields(in, width / 2, kSuperblock, fields);
    for (uint32_t i = 0; i < kSuperblock; ++i) store(i, fields[i]);
    return;
  }
  ReadFields(in, width, kSuperblock / 2, fields);
  for (uint32_t i = 0; i < kSuperblock / 2; ++i) {
    const uint32_t at = LowerOfPair(i);
    store(at, static_cast<uint16_t>(fields[i] % base));
    store(at + kBlock, static_cast<uint16_t>(fields[i] / base));
  }
}

void Unpack(const uint8_t* in, uint32_t width, uint16_t* tile, uint32_t superblocks) {
  for (uint32_t s = 0; s < superblocks; ++s, in += PackedBytes(width), tile += kSuperblock) {
    UnpackFields(in, width, [tile](uint32_t i, uint16_t field) { tile[i] = field; });
  }
}

void UnpackAdd(const uint8_t* in, uint32_t width, uint16_t* tile, uint32_t superblocks) {
  for (uint32_t s = 0; s < superblocks; ++s, in += PackedBytes(width), tile += kSuperblock) {
    UnpackFields(in, width, [tile](uint32_t i, uint16_t field) {
      tile[i] = static_cast<uint16_t>(tile[i] + field);
    });
  }
}

void PackOne(const uint16_t* tile, uint32_t width, uint8_t* out) {
  const uint32_t base = PairBase(width);
  if (base == 0) return WriteFields(tile, width / 2, kSuperblock, out);
  uint16_t pairs[kSuperblock / 2];
  for (uint32_t i = 0; i < kSuperblock / 2; ++i) {
    const uint32_t at = LowerOfPair(i);
    pairs[i] = static_cast<uint16_t>(tile[at] + base * tile[at + kBlock]);
  }
  WriteFields(pairs, width, kSuperblock / 2, out);
}

void Pack(const uint16_t* tile, uint32_t width, uint8_t* out, uint32_t superblocks) {
  for (uint32_t s = 0; s < superblocks; ++s, tile += kSuperblock, out += PackedBytes(width)) {
    PackOne(tile, width, out);
  }
}

void Encode(const QuantizeArgs& args, uint32_t width, uint8_t* out) {
  uint16_t tile[kSuperblock];
  QuantizeArgs one = args;
  one.superblocks = 1;
  for (uint32_t s = 0; s < args.superblocks; ++s, Advance(&one), out += PackedBytes(width)) {
    Quantize(one, tile);
    PackOne(tile, width, out);
  }
}

void AddEncode(const QuantizeArgs& args, const uint8_t* in, uint32_t in_width, uint32_t out_width,
               uint8_t* out) {
  uint16_t tile[kSuperblock];
  QuantizeArgs one = args;
  one.superblocks = 1;
  for (uint32_t s = 0; s < args.superblocks; ++s, Advance(&one)) {
    Unpack(in, in_width, tile, 1);
    QuantizeAdd(one, tile);
    PackOne(tile, out_width, out);
    in += PackedBytes(in_width);
    out += PackedBytes(out_width);
  }
}

void Decode(const DecodeArgs& args, const uint16_t* tile, float* y) {
  for (uint32_t s = 0; s < args.superblocks; ++s) {
    const uint32_t word = LoadWord(args.words, s);
    for (uint32_t i = 0; i < kSuperblock; ++i) {
      *y++ = DecodeElement(*tile++, args.zero, args.step[CodeOf(word, i / kBlock)]);
    }
  }
}

void Requantize(const RequantizeArgs& args, uint16_t* tile, uint8_t* words) {
  DecodeArgs one = args.sum;
  one.superblocks = 1;
  for (uint32_t s = 0; s < args.sum.superblocks; ++s) {
    float y[kSuperblock];
    Decode(one, tile, y);
    SideWords(y, 1, args.own, words);
    if (IsPoison(LoadWord(words, 0))) std::fill_n(y, kSuperblock, 0.0f);
    QuantizeNearest({.x = y, .words = words, .factor = args.factor, .k = args.k}, tile);
    one.words += kWordBytes;
    words += kWordBytes;
    tile += kSuperblock;
  }
}

void UnpackDecode(const DecodeArgs& args, const uint8_t* in, uint32_t width, float* y) {
  uint16_t tile[kSuperblock];
  DecodeArgs one = args;
  one.superblocks = 1;
  for (uint32_t s = 0; s < args.superblocks; ++s, one.words += kWordBytes, y += kSuperblock) {
    Unpack(in, width, tile, 1);
    Decode(one, tile, y);
    in += PackedBytes(width);
  }
}

}  // namespace

const Kernels& ScalarKernels() {
  static constexpr Kernels kKernels = {SideWords,  SideWordsNarrow, MergeWords,  Rotate,
                                       RotateBack, Quantize,        QuantizeAdd, QuantizeNearest,
                                       Unpack,     UnpackAdd,       Pack,        Encode,
                                       AddEncode,  Decode,          Requantize,  UnpackDecode};
  return kKernels;
}

}  // namespace inccl::hbi
