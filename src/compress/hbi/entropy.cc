// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/entropy.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "compress/checked_state.h"
#include "compress/hbi/side_words.h"

namespace inccl::hbi {
namespace {

constexpr uint32_t kPacked = 15;  // a head's shape: the run's fields are as they are

// 2^20 times the probability that |x| < i / 4 standard deviations; x is normal or Laplacian with
// equal probability.
constexpr std::array<uint32_t, 49> kHalf = {
    0,       259640,  466541,  629417,  754751,  848291,  915675,  962440,  993732,  1013998,
    1026785, 1034722, 1039627, 1042681, 1044617, 1045875, 1046711, 1047279, 1047669, 1047941,
    1048130, 1048263, 1048356, 1048422, 1048468, 1048500, 1048523, 1048539, 1048550, 1048558,
    1048563, 1048567, 1048570, 1048572, 1048573, 1048574, 1048574, 1048575, 1048575, 1048575,
    1048576, 1048576, 1048576, 1048576, 1048576, 1048576, 1048576, 1048576, 1048576,
};
// 2^20 / s for the standard deviation s = 2^(-(i + 2) / 4) of shape i, in scales of the block.
constexpr std::array<uint32_t, kShapes> kInverse = {
    1482910, 1763488, 2097152, 2493948, 2965821,  3526975,  4194304,  4987896,
    5931642, 7053950, 8388608, 9975792, 11863283, 14107901, 16777216,
};

uint64_t Load(const uint8_t* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
void Store(uint64_t value, uint8_t* at) { std::memcpy(at, &value, sizeof value); }

// How many low bits of a value are not coded, so that what is left is below 16.
uint32_t RawBits(uint32_t k) {
  const auto bits = static_cast<uint32_t>(std::bit_width(2 * k));
  return bits > 4 ? bits - 4 : 0;
}
constexpr uint32_t kMostRaw = 9;
// Values without raw bits.
uint32_t TopsOf(uint32_t k) { return (2 * k >> RawBits(k)) + 1; }
// A letter is a byte, of this many values: what packed fields of 8 / ValuesOf bits have.
uint32_t ValuesOf(uint32_t k) { return k == 1 ? 4 : 2; }
uint32_t LettersOf(uint32_t k) { return kSuperblock / ValuesOf(k); }
uint32_t LetterWidth(uint32_t k) { return 16 / ValuesOf(k); }  // half-bits
// Bytes of the raw bits of a superblock: packed fields of as many bits.
uint32_t RawBytes(uint32_t k) { return PackedBytes(2 * RawBits(k)); }

// 2^20 times the probability of a magnitude below edge / (2 K), with the edge's sign.
int64_t Below(uint32_t k, uint32_t shape, int64_t edge) {
  const uint64_t magnitude = static_cast<uint64_t>(edge < 0 ? -edge : edge);
  const uint64_t at = std::min<uint64_t>(magnitude * kInverse[shape] / (8 * k), 48u << 16);
  const size_t i = at >> 16;
  const uint64_t next = kHalf[std::min<size_t>(i + 1, 48)];
  const auto value = static_cast<int64_t>(kHalf[i] + ((next - kHalf[i]) * (at & 65535) >> 16));
  return edge < 0 ? -value : value;
}

// By number of the letter: the tops of its values are the digits, the first one the lowest.
std::vector<uint64_t> WeightsOf(uint32_t k, uint32_t shape) {
  const uint32_t raw = RawBits(k), tops = TopsOf(k);
  std::vector<uint64_t> one(tops);
  for (uint32_t top = 0; top < tops; ++top) {
    const int64_t first = int64_t{top} << raw;
    const auto last = std::min<int64_t>((int64_t{top} + 1) << raw, 2 * k + 1) - 1;
    one[top] = static_cast<uint64_t>(Below(k, shape, 2 * (last - k) + 1) -
                                     Below(k, shape, 2 * (first - k) - 1) + 16);
  }
  std::vector<uint64_t> two;
  for (const uint64_t high : one) {
    for (const uint64_t low : one) two.push_back(low * high);
  }
  if (ValuesOf(k) == 2) return two;
  std::vector<uint64_t> four;
  for (const uint64_t high : two) {
    for (const uint64_t low : two) four.push_back((low >> 21) * (high >> 21) + 1);
  }
  return four;
}

// Package-merge: the lengths of at most kCodeBits with the smallest mean.
CodeLengths LengthsFor(std::span<const uint64_t> weights) {
  const size_t n = weights.size();
  std::vector<uint16_t> order(n);
  std::iota(order.begin(), order.end(), uint16_t{0});
  std::sort(order.begin(), order.end(), [&](uint16_t a, uint16_t b) {
    return std::pair(weights[a], a) < std::pair(weights[b], b);
  });
  struct Item {
    uint64_t weight = 0;
    bool package = false;
  };
  std::array<std::vector<Item>, kCodeBits> lists;
  std::vector<Item> last;
  for (std::vector<Item>& list : lists) {
    std::vector<uint64_t> packages;
    for (size_t i = 0; i + 1 < last.size(); i += 2) {
      packages.push_back(last[i].weight + last[i + 1].weight);
    }
    size_t p = 0;
    for (const uint16_t letter : order) {
      // A leaf comes before a package of equal weight.
      while (p < packages.size() && packages[p] < weights[letter]) {
        list.push_back({packages[p++], true});
      }
      list.push_back({weights[letter], false});
    }
    while (p < packages.size()) list.push_back({packages[p++], true});
    last = list;
  }
  CodeLengths lengths;
  lengths.letters = static_cast<uint32_t>(n);
  size_t take = 2 * n - 2;
  for (size_t level = lists.size(); level-- > 0;) {
    const auto packages = static_cast<size_t>(
        std::count_if(lists[level].begin(), lists[level].begin() + static_cast<ptrdiff_t>(take),
                      [](const Item& item) { return item.package; }));
    for (size_t i = 0; i < take - packages; ++i) ++lengths.bits[order[i]];
    take = 2 * packages;
  }
  return lengths;
}

// A code of K levels. An entry is a value and, in its lowest six bits, the length of the code.
struct CodeTable {
  static constexpr uint32_t kLength = 6;
  std::array<uint32_t, 256> encode{};              // the code, by letter
  std::array<uint16_t, 1u << kCodeBits> decode{};  // the letter, by the next bits

  CodeTable(uint32_t k, uint32_t shape);
};

CodeTable::CodeTable(uint32_t k, uint32_t shape) {
  const CodeLengths lengths = LengthsOf(k, shape);
  const uint32_t tops = TopsOf(k);
  uint32_t code = 0;
  for (uint32_t length = 1; length <= kCodeBits; ++length, code <<= 1) {
    for (uint32_t number = 0; number < lengths.letters; ++number) {
      if (lengths.bits[number] != length) continue;
      uint32_t first_bit_lowest = 0, letter = 0;
      for (uint32_t bit = 0; bit < length; ++bit) {
        first_bit_lowest |= (code >> bit & 1) << (length - 1 - bit);
      }
      ++code;
      for (uint32_t i = 0, rest = number; i < ValuesOf(k); ++i, rest /= tops) {
        letter |= rest % tops << i * 8 / ValuesOf(k);
      }
      encode[letter] = first_bit_lowest << kLength | length;
      for (uint32_t next = first_bit_lowest; next < decode.size(); next += 1u << length) {
        decode[next] = static_cast<uint16_t>(letter << kLength | length);
      }
    }
  }
}

// Tables live as long as the process, so that a thread that has one needs no lock.
struct TablesOfLevels {
  std::array<std::atomic<const CodeTable*>, kShapes> shapes{};
  std::array<std::atomic<uint32_t>, kShapes> costs{};  // Cost64; 0: not known yet
};
std::array<std::atomic<TablesOfLevels*>, kMaxLevels + 1> all_tables{};

// What is at a place; where there is nothing, a new one. Of two threads that make one, one takes
// the other's.
template <typename T, typename Make>
T& At(std::atomic<T*>* place, const Make& make) {
  T* there = place->load(std::memory_order_acquire);
  if (there != nullptr) return *there;
  std::unique_ptr<T> made = make();
  return *(place->compare_exchange_strong(there, made.get()) ? made.release() : there);
}

TablesOfLevels& TablesOf(uint32_t k) {
  return At(&all_tables[k], [] { return std::make_unique<TablesOfLevels>(); });
}

const CodeTable& TableOf(uint32_t k, uint32_t shape) {
  TablesOfLevels& tables = TablesOf(k);
  return At(&tables.shapes[shape], [&] { return std::make_unique<const CodeTable>(k, shape); });
}

// ---------------------------------------------------------------- runs

// The superblocks of a run that have levels, on their way between fields and a code.
struct Run {
  std::array<uint32_t, kRunSuperblocks> k;
  uint32_t superblocks = 0;
  size_t packed = 0, raw = 0;  // bytes of all fields; of all raw bits
  uint8_t letters[kRunSuperblocks][kSuperblock / 2 + kReadSlack];

  // Superblocks from `first` on.
  void Begin(std::span<const uint16_t> levels, size_t first) {
    superblocks = 0;
    packed = raw = 0;
    for (size_t s = first; s < std::min(first + kRunSuperblocks, levels.size()); ++s) {
      if (levels[s] == 0) continue;
      k[superblocks++] = levels[s];
      packed += PackedBytes(Width(1, levels[s]));
      raw += RawBytes(levels[s]);
    }
  }
};

// Four fields of two tiles at a time: in a word, so that shifts of 16 bits need no vectors of them.
constexpr uint64_t kEach = 0x0001000100010001;
template <typename Function>
void EachFour(uint16_t* tile, uint16_t* other, const Function& function) {
  for (uint32_t i = 0; i < kSuperblock; i += 4) {
    uint64_t a, b;
    std::memcpy(&a, tile + i, sizeof a);
    std::memcpy(&b, other + i, sizeof b);
    function(&a, &b);
    std::memcpy(tile + i, &a, sizeof a);
    std::memcpy(other + i, &b, sizeof b);
  }
}

// Makes letters and raw bits of packed fields.
void Split(const Kernels& kernels, const uint8_t* fields, Run* run, uint8_t* raw) {
  alignas(64) uint16_t tile[kSuperblock], low[kSuperblock] = {};
  uint8_t low_fields[PackedBytes(2 * kMostRaw) + kWriteSlack];
  for (uint32_t s = 0; s < run->superblocks; ++s) {
    const uint32_t k = run->k[s], width = Width(1, k), bits = RawBits(k);
    if (width == LetterWidth(k)) {
      std::memcpy(run->letters[s], fields, LettersOf(k));
    } else {
      kernels.unpack(fields, width, tile, 1);
      if (bits != 0) {
        const uint64_t raws = kEach * ((1u << bits) - 1);
        EachFour(tile, low, [&](uint64_t* value, uint64_t* rest) {
          *rest = *value & raws;
          *value = *value >> bits & kEach * 15;
        });
        kernels.pack(low, 2 * bits, low_fields, 1);
        std::memcpy(raw, low_fields, RawBytes(k));
        raw += RawBytes(k);
      }
      kernels.pack(tile, LetterWidth(k), run->letters[s], 1);
    }
    fields += PackedBytes(width);
  }
}

static_assert(kReadSlack >= kWriteSlack);

// The reverse. `raw` is readable for kReadSlack more.
void Join(const Kernels& kernels, const Run& run, const uint8_t* raw, uint8_t* fields) {
  alignas(64) uint16_t tile[kSuperblock], low[kSuperblock];
  uint8_t packed[PackedBytes(Width(1, kMaxLevels)) + kWriteSlack];
  for (uint32_t s = 0; s < run.superblocks; ++s) {
    const uint32_t k = run.k[s], width = Width(1, k), bits = RawBits(k);
    if (width == LetterWidth(k)) {
      std::memcpy(fields, run.letters[s], LettersOf(k));
    } else {
      kernels.unpack(run.letters[s], LetterWidth(k), tile, 1);
      if (bits != 0) {
        kernels.unpack(raw, 2 * bits, low, 1);
        EachFour(tile, low, [&](uint64_t* value, const uint64_t* rest) {
          *value = *value << bits | *rest;  // below 2^16 each
        });
        raw += RawBytes(k);
      }
      kernels.pack(tile, width, packed, 1);
      std::memcpy(fields, packed, PackedBytes(width));
    }
    fields += PackedBytes(width);
  }
}

// ---------------------------------------------------------------- encoding

// The bits of some letters of the run.
uint64_t SampleBits(const Run& run, uint32_t shape) {
  constexpr uint32_t kEvery = 16;
  uint64_t bits = 0;
  for (uint32_t s = 0; s < run.superblocks; ++s) {
    const CodeTable& table = TableOf(run.k[s], shape);
    for (uint32_t i = 2 * s; i < LettersOf(run.k[s]); i += kEvery) {
      bits += table.encode[run.letters[s][i]] & 63;
    }
  }
  return bits;
}

// The best shape for the run near another one.
uint32_t ShapeNear(const Run& run, uint32_t shape) {
  uint64_t best = SampleBits(run, shape);
  for (const uint32_t step : {1u, ~0u}) {
    const uint32_t begin = shape;
    while (shape + step < kShapes) {
      const uint64_t bits = SampleBits(run, shape + step);
      if (bits >= best) break;
      best = bits;
      shape += step;
    }
    if (shape != begin) break;
  }
  return shape;
}

constexpr size_t kMostCode = kRunSuperblocks * kSuperblock / 2 * kCodeBits / 8 + sizeof(uint64_t);

// Returns the number of bytes of the letters' codes.
size_t EncodeLetters(const Run& run, uint32_t shape, uint8_t* out) {
  uint8_t* at = out;
  uint64_t value = 0;
  uint32_t bits = 0;
  for (uint32_t s = 0; s < run.superblocks; ++s) {
    const std::array<uint32_t, 256>& codes = TableOf(run.k[s], shape).encode;
    const uint8_t* const letters = run.letters[s];
    for (uint32_t i = 0; i < LettersOf(run.k[s]); i += 4) {
      for (uint32_t j = 0; j < 4; ++j) {
        const uint32_t entry = codes[letters[i + j]];
        value |= uint64_t{entry >> CodeTable::kLength} << bits;
        bits += entry & 63;
      }
      Store(value, at);
      at += bits / 8;
      value >>= bits & ~7u;
      bits &= 7;
    }
  }
  if (bits != 0) *at++ = static_cast<uint8_t>(value);
  return static_cast<size_t>(at - out);
}

// ---------------------------------------------------------------- decoding

// A run whose code is being read, in memory of its own.
struct CodedRun {
  Run run;
  uint32_t shape = 0;
  size_t bytes = 0;
  uint8_t* fields = nullptr;
  uint32_t superblock = 0, letter = 0;  // the next one
  uint64_t at = 0;                      // bits
  // Zeros for what one step may read beyond the end, and for Join.
  static constexpr uint32_t kStep = 64;  // letters
  static constexpr size_t kBeyond = kStep * kCodeBits / 8 + kReadSlack;
  uint8_t code[4096 + kBeyond];

  bool done() const { return superblock == run.superblocks; }
  // Whether the code ends with the last letter and zeros up to a whole byte.
  bool EndsWell() const {
    return (at + 7) / 8 == bytes && (at % 8 == 0 || code[at / 8] >> at % 8 == 0);
  }
};

// Decodes kStep letters of each of some runs, so that their dependent loads overlap.
template <size_t kRuns>
void DecodeStep(const std::array<CodedRun*, 4>& runs) {
  constexpr uint32_t kIndex = (1u << kCodeBits) - 1;
  std::array<const uint16_t*, kRuns> tables;
  std::array<const uint8_t*, kRuns> in;
  std::array<uint8_t*, kRuns> out;
  std::array<uint64_t, kRuns> at;
  for (size_t r = 0; r < kRuns; ++r) {
    CodedRun& from = *runs[r];
    const uint32_t k = from.run.k[from.superblock];
    tables[r] = TableOf(k, from.shape).decode.data();
    in[r] = from.code;
    out[r] = from.run.letters[from.superblock] + from.letter;
    at[r] = from.at;
    from.letter += CodedRun::kStep;
    if (from.letter == LettersOf(k)) {
      from.letter = 0;
      ++from.superblock;
    }
  }
  for (uint32_t i = 0; i < CodedRun::kStep; i += 4) {
    for (size_t r = 0; r < kRuns; ++r) {
      uint64_t bits = Load(in[r] + at[r] / 8) >> at[r] % 8;
      uint32_t four = 0, lengths = 0;
      for (uint32_t j = 0; j < 4; ++j) {
        const uint32_t entry = tables[r][bits & kIndex];
        bits >>= entry & 63;
        four |= entry >> CodeTable::kLength << 8 * j;
        lengths += entry;
      }
      at[r] += lengths & 63;  // four lengths are less than 64
      std::memcpy(out[r] + i, &four, sizeof four);
    }
  }
  for (size_t r = 0; r < kRuns; ++r) runs[r]->at = at[r];
}
static_assert(4 * kCodeBits < 64 - 7);

// Decodes runs beside each other and writes their fields. False if one is malformed.
bool DecodeRuns(const Kernels& kernels, std::span<CodedRun> runs) {
  for (;;) {
    std::array<CodedRun*, 4> ready{};
    size_t count = 0;
    for (CodedRun& run : runs) {
      if (run.at > 8 * run.bytes) return false;  // it has ended before
      if (!run.done()) ready[count++] = &run;
    }
    switch (count) {
      case 0: break;
      case 1: DecodeStep<1>(ready); continue;
      case 2: DecodeStep<2>(ready); continue;
      case 3: DecodeStep<3>(ready); continue;
      default: DecodeStep<4>(ready); continue;
    }
    break;
  }
  for (const CodedRun& run : runs) {
    if (!run.EndsWell()) return false;
    Join(kernels, run.run, run.code, run.fields);
  }
  return true;
}

}  // namespace

CodeLengths LengthsOf(uint32_t k, uint32_t shape) { return LengthsFor(WeightsOf(k, shape)); }

uint32_t Cost64(uint32_t k, uint32_t shape) {
  std::atomic<uint32_t>& known = TablesOf(k).costs[shape];
  if (const uint32_t cost = known.load(std::memory_order_relaxed); cost != 0) return cost;
  const std::vector<uint64_t> weights = WeightsOf(k, shape);
  const CodeLengths lengths = LengthsFor(weights);
  uint64_t total = 0, bits = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    total += weights[i];
    bits += weights[i] * lengths.bits[i];
  }
  total *= ValuesOf(k);
  const auto coded = static_cast<uint32_t>((64 * bits + total - 1) / total);
  const uint32_t cost = coded + 64 * RawBits(k) + 1;
  known.store(cost, std::memory_order_relaxed);
  return cost;
}

uint32_t ShapeOfSum(uint32_t k, uint32_t nranks) {
  const auto bits = static_cast<uint32_t>(std::bit_width(nranks));
  return k == 1 ? std::min(3u, bits) : std::min(5u, 1 + bits);
}

uint32_t ShapeOfResult(uint32_t k) { return std::min(k - 1, 2u); }

namespace {

// Runs that a thread takes together. A code's shape depends on those before it in here only, so the
// bytes do not depend on the threads.
constexpr size_t kGroupSuperblocks = 16 * kRunSuperblocks;

size_t PackedBytesOf(std::span<const uint16_t> levels) {
  size_t bytes = 0;
  for (const uint16_t k : levels) bytes += k != 0 ? PackedBytes(Width(1, k)) : 0;
  return bytes;
}

// Returns the bytes behind the heads.
size_t EncodeGroup(const Kernels& kernels, std::span<const uint16_t> levels, const uint8_t* fields,
                   uint8_t* heads, uint8_t* out) {
  uint8_t* at = out;
  uint32_t shape = 4;
  Run run;
  uint8_t code[kRunSuperblocks * PackedBytes(2 * kMostRaw) + kMostCode];
  for (size_t s = 0; s < levels.size(); s += kRunSuperblocks, heads += kHeadBytes) {
    run.Begin(levels, s);
    Split(kernels, fields, &run, code);
    shape = ShapeNear(run, shape);
    const size_t bytes = run.raw + EncodeLetters(run, shape, code + run.raw);
    const bool pays = bytes < run.packed;
    const auto head = static_cast<uint16_t>(pays ? shape << 12 | bytes : kPacked << 12);
    std::memcpy(heads, &head, sizeof head);
    std::memcpy(at, pays ? code : fields, pays ? bytes : run.packed);
    at += pays ? bytes : run.packed;
    fields += run.packed;
  }
  return static_cast<size_t>(at - out);
}

// What a head says of a run.
struct Head {
  uint32_t shape;  // or kPacked
  size_t bytes;    // behind the heads
  // Reads that of a run of so many bytes of fields and of raw bits. False if no encoder writes it.
  bool Read(const uint8_t* at, size_t packed, size_t raw) {
    uint16_t head;
    std::memcpy(&head, at, sizeof head);
    shape = head >> 12;
    bytes = shape == kPacked ? packed : head & 0xfff;
    return shape == kPacked ? (head & 0xfff) == 0 : bytes >= raw && bytes < packed;
  }
};

// `in`: `bytes` behind the heads, which are exactly those of these runs.
bool DecodeGroup(const Kernels& kernels, std::span<const uint16_t> levels, const uint8_t* heads,
                 const uint8_t* in, size_t bytes, uint8_t* fields) {
  const uint8_t* const end = in + bytes;
  CodedRun runs[4];
  size_t coded = 0;
  for (size_t s = 0; s < levels.size(); s += kRunSuperblocks, heads += kHeadBytes) {
    CodedRun& run = runs[coded];
    run.run.Begin(levels, s);
    const size_t packed = run.run.packed;
    Head head;
    // Again: a peer may have changed it.
    if (!head.Read(heads, packed, run.run.raw)) return false;
    if (head.bytes > static_cast<size_t>(end - in)) return false;
    if (head.shape == kPacked) {
      std::memcpy(fields, in, packed);
    } else {
      run.shape = head.shape;
      run.bytes = head.bytes;
      std::memcpy(run.code, in, run.bytes);
      std::memset(run.code + run.bytes, 0, CodedRun::kBeyond);
      run.fields = fields;
      run.superblock = run.letter = 0;
      run.at = 8 * run.run.raw;
      if (++coded == std::size(runs) && !DecodeRuns(kernels, {runs, std::exchange(coded, 0)})) {
        return false;
      }
    }
    in += head.bytes;
    fields += packed;
  }
  return in == end && DecodeRuns(kernels, {runs, coded});
}

// A group's place in a payload.
struct Place {
  size_t levels = 0, fields = 0, coded = 0;  // where it begins; `coded` behind the heads
};
// Of all groups, and of the end.
using Places = std::array<Place, kWindow / kSuperblock / kGroupSuperblocks + 1>;

// Runs work(begin, end), which may throw std::bad_alloc, for the groups [begin, end) of each part.
template <typename Work>
void RunGroups(Team* team, size_t groups, const Work& work) {
  const uint32_t parts = team->PartsOf(groups, 1);
  std::atomic<bool> failed = false;
  team->Run(parts, [&](uint32_t part) noexcept {
    try {
      work(groups * part / parts, groups * (part + 1) / parts);
    } catch (const std::bad_alloc&) {
      failed.store(true, std::memory_order_relaxed);
    }
  });
  if (failed.load(std::memory_order_relaxed)) throw std::bad_alloc();
}

}  // namespace

size_t EntropyEncode(Team* team, const Kernels& kernels, std::span<const uint16_t> levels,
                     const uint8_t* fields, uint8_t* out) {
  const size_t groups = (levels.size() + kGroupSuperblocks - 1) / kGroupSuperblocks;
  uint8_t* const body = out + HeadBytes(levels.size());
  // Each group goes where it would begin if all before it had packed fields, then to its place.
  Places places;
  for (size_t g = 0; g < groups; ++g) {
    const size_t end = std::min(places[g].levels + kGroupSuperblocks, levels.size());
    places[g + 1] = {.levels = end,
                     .fields = places[g].fields + PackedBytesOf(levels.subspan(
                                                      places[g].levels, end - places[g].levels))};
  }
  RunGroups(team, groups, [&](size_t begin, size_t end) {
    for (size_t g = begin; g < end; ++g) {
      const Place& place = places[g];
      places[g].coded =
          EncodeGroup(kernels, levels.subspan(place.levels, places[g + 1].levels - place.levels),
                      fields + place.fields, out + HeadBytes(place.levels), body + place.fields);
    }
  });
  size_t bytes = 0;
  for (size_t g = 0; g < groups; ++g) {
    std::memmove(body + bytes, body + places[g].fields, places[g].coded);
    bytes += places[g].coded;
  }
  return HeadBytes(levels.size()) + bytes;
}

bool EntropyDecode(Team* team, const Kernels& kernels, std::span<const uint16_t> levels,
                   const uint8_t* in, size_t bytes, uint8_t* fields) {
  const size_t heads = HeadBytes(levels.size());
  if (bytes < heads) return false;
  const size_t groups = (levels.size() + kGroupSuperblocks - 1) / kGroupSuperblocks;
  Places places;
  Run run;
  Place at;
  for (size_t s = 0; s < levels.size(); s += kRunSuperblocks) {
    if (s % kGroupSuperblocks == 0) places[s / kGroupSuperblocks] = at;
    run.Begin(levels, s);
    Head head;
    if (!head.Read(in + HeadBytes(s), run.packed, run.raw)) return false;
    at.fields += run.packed;
    at.coded += head.bytes;
    at.levels = std::min(s + kRunSuperblocks, levels.size());
  }
  places[groups] = at;
  if (at.coded != bytes - heads) return false;
  std::atomic<bool> valid = true;
  RunGroups(team, groups, [&](size_t begin, size_t end) {
    for (size_t g = begin; g < end; ++g) {
      const Place &place = places[g], &next = places[g + 1];
      if (!DecodeGroup(kernels, levels.subspan(place.levels, next.levels - place.levels),
                       in + HeadBytes(place.levels), in + heads + place.coded,
                       next.coded - place.coded, fields + place.fields)) {
        valid.store(false, std::memory_order_relaxed);
      }
    }
  });
  return valid.load(std::memory_order_relaxed);
}

namespace {

// The bytes of side words that a payload begins with.
size_t OwnWordBytes(const SliceContext& slice, const Format& format) {
  const bool own = format.form == Form::kResult && slice.planner->requantizes();
  return own ? size_t{slice.superblocks()} * kWordBytes : 0;
}

// Checks a payload's checksum and takes it off its length.
Status TakeChecksum(const CodedPayloads::Call& call, Term* input) {
  if (call.trailer == 0) return Status::Ok();
  const char* const name = Name(input->format.form);
  if (input->bytes < call.trailer) {
    return InternalError(fmt::format("hbi: {} payload of {} bytes has no checksum of {}", name,
                                     input->bytes, call.trailer));
  }
  input->bytes -= call.trailer;
  return VerifyChecksum(input->data, input->bytes, name, *call.range, call.rank);
}

}  // namespace

std::span<const uint16_t> CodedPayloads::LevelsOf(const SliceContext& slice, Form form) {
  const bool second = form == Form::kResult && slice.planner->requantizes();
  const std::span<const Point> points = slice.planner->points();
  levels_.resize(slice.superblocks());
  for (uint32_t s = 0; s < slice.superblocks(); ++s) {
    const Point& point = points[slice.points[s]];
    levels_[s] = second ? point.k2 : point.k;
  }
  return levels_;
}

Status CodedPayloads::Decode(const Call& call, const Term& input, const Term& packed) {
  const size_t words = OwnWordBytes(*call.slice, input.format);
  if (input.bytes < words || input.bytes > packed.bytes) {
    return InternalError(fmt::format("hbi: {} payload: expected {} to {} bytes, got {}",
                                     Name(input.format.form), words, packed.bytes, input.bytes));
  }
  const uint8_t* const in = Unsigned(input.data);
  uint8_t* const to = Unsigned(packed.data);
  if (words != 0) std::memcpy(to, in, words);
  if (EntropyDecode(call.team, *call.slice->kernels, LevelsOf(*call.slice, input.format.form),
                    in + words, input.bytes - words, to + words)) {
    return Status::Ok();
  }
  return InternalError(fmt::format(
      "hbi: {} payload of {} bytes for elements {} to {}, {} in packed fields, is not made "
      "of codes",
      Name(input.format.form), input.bytes, call.range->first,
      call.range->first + call.range->count, packed.bytes));
}

Status CodedPayloads::Encode(const Call& call, const Term& packed, Term* output) {
  const size_t words = OwnWordBytes(*call.slice, packed.format);
  const size_t most = packed.bytes + HeadBytes(call.slice->superblocks());
  if (Status s = CheckCapacity(*output, packed.bytes + call.trailer); !s.ok()) return s;
  uint8_t* out = Unsigned(output->data);
  if (output->bytes < most) {
    if (coded_.size() < most) coded_.resize(most);
    out = coded_.data();
  }
  const uint8_t* const from = Unsigned(packed.data);
  std::memcpy(out, from, words);
  const size_t bytes =
      words + EntropyEncode(call.team, *call.slice->kernels,
                            LevelsOf(*call.slice, packed.format.form), from + words, out + words);
  // A payload of the packed fields' length is packed.
  const bool shorter = bytes < packed.bytes;
  output->bytes = shorter ? static_cast<uint32_t>(bytes) : packed.bytes;
  if (!shorter) out = Unsigned(packed.data);
  if (out != Unsigned(output->data) && output->bytes != 0) {
    std::memcpy(output->data, out, output->bytes);
  }
  return Status::Ok();
}

bool CodedPayloads::IsMade(const Format& format) const {
  return std::any_of(outputs_.begin(), outputs_.end(),
                     [&](const Term& term) { return term.format == format; });
}

Status CodedPayloads::Take(const Call& call, std::span<const Term> inputs,
                           std::span<const Term> outputs) {
  const uint64_t packed_sum = SumBytes(*call.slice, 1), packed_result = ResultBytes(*call.slice);
  const size_t each = (std::max(packed_sum, packed_result) + kReadSlack + 63) / 64 * 64;
  const size_t needed = (inputs.size() + 2) * each;  // of outputs there are at most two forms
  if (buffer_.size() < needed) buffer_.resize(needed);
  auto* at = reinterpret_cast<std::byte*>(buffer_.data());
  const auto place = [&](const Format& format) {
    std::byte* const here = std::exchange(at, at + each);
    return Term{format, here,
                static_cast<uint32_t>(format.form == Form::kSum ? packed_sum : packed_result)};
  };
  inputs_.clear();
  outputs_.clear();
  for (Term input : inputs) {
    if (input.format.form != Form::kInput) {
      if (Status status = TakeChecksum(call, &input); !status.ok()) return status;
    }
    const bool result = input.format.form == Form::kResult;
    if (Admits(input.format) && input.bytes != (result ? packed_result : packed_sum)) {
      const Term packed = place(input.format);
      if (Status status = Decode(call, input, packed); !status.ok()) return status;
      input = packed;
    }
    inputs_.push_back(input);
  }
  for (Term output : outputs) {
    if (Admits(output.format) && IsForward(inputs)) continue;
    if (Admits(output.format) && call.codes) {
      if (IsMade(output.format)) continue;
      output = place(output.format);
    } else if (output.format.form != Form::kOutput) {
      output.bytes -= std::min(output.bytes, call.trailer);
    }
    outputs_.push_back(output);
  }
  return Status::Ok();
}

Status CodedPayloads::Put(const Call& call, std::span<const Term> inputs, std::span<Term> outputs) {
  size_t next = 0;  // of outputs_
  for (size_t i = 0; i < outputs.size(); ++i) {
    Term& output = outputs[i];
    const Term* same = nullptr;
    if (Admits(output.format)) {
      if (IsForward(inputs)) same = inputs.data();
      for (const Term& before : outputs.first(i)) {
        if (call.codes && before.format == output.format) same = &before;
      }
    }
    if (same != nullptr) {
      if (Status status = CheckCapacity(output, same->bytes); !status.ok()) return status;
      if (same->bytes != 0) std::memcpy(output.data, same->data, same->bytes);
      output.bytes = same->bytes;
      continue;
    }
    const Term& made = outputs_[next++];
    if (Admits(output.format) && call.codes) {
      if (Status status = Encode(call, made, &output); !status.ok()) return status;
    } else {
      output.bytes = made.bytes;
    }
    if (output.format.form == Form::kOutput || call.trailer == 0) continue;
    PutChecksum(output.data, output.bytes);
    output.bytes += call.trailer;
  }
  return Status::Ok();
}

}  // namespace inccl::hbi
