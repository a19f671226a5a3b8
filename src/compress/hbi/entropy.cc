// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/entropy.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

namespace inccl::hbi {
namespace {

constexpr uint32_t kPacked = 15;  // a head's shape: the run's fields are as they are
constexpr uint32_t kRunElements = kRunSuperblocks * kSuperblock;

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

// How the packed fields of K levels are cut into letters.
struct Letters {
  uint32_t width = 0;   // half-bits of a field
  uint32_t bits = 0;    // of a letter
  uint32_t values = 0;  // elements of a letter
  uint32_t raw = 0;     // low bits of each that are not coded
  uint32_t radix = 0;   // of the values in a letter
  uint32_t tops = 0;    // values without their raw bits
  explicit Letters(uint32_t k)
      : width(Width(1, k)),
        bits(k == 1 ? 2 * width : width),
        values(k == 1 ? 4 : 2),
        raw(static_cast<uint32_t>(std::max(0, static_cast<int>(std::bit_width(2 * k)) - 4))),
        radix(width % 2 != 0 ? PairBase(width) : 1u << width / 2),
        tops((2 * k >> raw) + 1) {}
  uint32_t codes() const { return values == 4 ? tops * tops * tops * tops : tops * tops; }
};

// 2^20 times the probability of a magnitude below edge / (2 K), with the edge's sign.
int64_t Below(uint32_t k, uint32_t shape, int64_t edge) {
  const uint64_t magnitude = static_cast<uint64_t>(edge < 0 ? -edge : edge);
  const uint64_t at = std::min<uint64_t>(magnitude * kInverse[shape] / (8 * k), 48u << 16);
  const size_t i = at >> 16;
  const uint64_t next = kHalf[std::min<size_t>(i + 1, 48)];
  const auto value = static_cast<int64_t>(kHalf[i] + ((next - kHalf[i]) * (at & 65535) >> 16));
  return edge < 0 ? -value : value;
}

// Of letters without their raw bits.
std::vector<uint64_t> WeightsOf(uint32_t k, uint32_t shape) {
  const Letters letters(k);
  std::vector<uint64_t> one(letters.tops);
  for (uint32_t top = 0; top < letters.tops; ++top) {
    const auto first = static_cast<int64_t>(top << letters.raw);
    const auto last = std::min<int64_t>(((top + 1) << letters.raw) - 1, 2 * k);
    one[top] = static_cast<uint64_t>(Below(k, shape, 2 * (last - k) + 1) -
                                     Below(k, shape, 2 * (first - k) - 1) + 16);
  }
  std::vector<uint64_t> two;
  for (const uint64_t high : one) {
    for (const uint64_t low : one) two.push_back(low * high);
  }
  if (letters.values == 2) return two;
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
  std::stable_sort(order.begin(), order.end(),
                   [&](uint16_t a, uint16_t b) { return weights[a] < weights[b]; });
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

// A code of K levels.
struct CodeTable {
  static constexpr uint32_t kDirectBits = 10;  // of a letter that is an index
  // A code and its length in the upper byte: by packed letter, its raw bits included, or, of
  // letters of more bits, by letter without raw bits.
  std::array<uint32_t, 1u << kDirectBits> encode{};
  // By the next bits: the letter with raw bits of zero, and the length of its code above.
  std::array<uint32_t, 1u << kCodeBits> decode{};

  CodeTable(uint32_t k, uint32_t shape);
};
constexpr uint32_t kLengthShift = 27;
static_assert(2 * 13 <= kLengthShift, "letters of kMaxLevels and lengths share a word");

CodeTable::CodeTable(uint32_t k, uint32_t shape) {
  const Letters letters(k);
  const CodeLengths lengths = LengthsOf(k, shape);
  std::array<uint32_t, 256> codes{};
  uint32_t code = 0;
  for (uint32_t length = 1; length <= kCodeBits; ++length, code <<= 1) {
    for (uint32_t letter = 0; letter < lengths.letters; ++letter) {
      if (lengths.bits[letter] != length) continue;
      uint32_t reversed = 0;
      for (uint32_t bit = 0; bit < length; ++bit)
        reversed |= (code >> bit & 1) << (length - 1 - bit);
      ++code;
      codes[letter] = reversed | length << 24;
      uint32_t packed = 0, place = 1;
      for (uint32_t i = 0, rest = letter; i < letters.values; ++i, rest /= letters.tops) {
        packed += (rest % letters.tops << letters.raw) * place;
        place *= letters.radix;
      }
      for (uint32_t next = reversed; next < decode.size(); next += 1u << length) {
        decode[next] = packed | length << kLengthShift;
      }
    }
  }
  if (letters.bits > kDirectBits) {
    std::copy(codes.begin(), codes.end(), encode.begin());
    return;
  }
  for (uint32_t packed = 0; packed < 1u << letters.bits; ++packed) {
    uint32_t letter = 0, raw = 0, place = 1, rest = packed, raws = 0;
    bool valid = true;
    for (uint32_t i = 0; i < letters.values; ++i, rest /= letters.radix) {
      const uint32_t value = rest % letters.radix;
      valid = valid && value >> letters.raw < letters.tops;
      letter += (value >> letters.raw) * place;
      place *= letters.tops;
      raw |= (value & ((1u << letters.raw) - 1)) << raws;
      raws += letters.raw;
    }
    if (!valid) continue;  // no encoder meets it
    const uint32_t bits = codes[letter] >> 24;
    encode[packed] = (codes[letter] & 0xffffff) | raw << bits | (bits + raws) << 24;
  }
}

// Tables live as long as the process, so that a thread that has one needs no lock.
struct TablesOfLevels {
  std::array<std::atomic<const CodeTable*>, kShapes> shapes{};
};
std::array<std::atomic<TablesOfLevels*>, kMaxLevels + 1> all_tables{};

// Puts a new object where there is none; of two threads, one keeps its own.
template <typename T>
T* Keep(std::atomic<T*>* place, std::unique_ptr<T> made) {
  T* kept = nullptr;
  return place->compare_exchange_strong(kept, made.get()) ? made.release() : kept;
}

TablesOfLevels& TablesOf(uint32_t k) {
  TablesOfLevels* tables = all_tables[k].load(std::memory_order_acquire);
  return *(tables != nullptr ? tables : Keep(&all_tables[k], std::make_unique<TablesOfLevels>()));
}

const CodeTable& TableOf(TablesOfLevels* tables, uint32_t k, uint32_t shape) {
  const CodeTable* table = tables->shapes[shape].load(std::memory_order_acquire);
  if (table != nullptr) return *table;
  return *Keep<const CodeTable>(&tables->shapes[shape],
                                std::make_unique<const CodeTable>(k, shape));
}

// ---------------------------------------------------------------- encoding

// Cuts letters of more than kDirectBits.
class Splitter {
 public:
  explicit Splitter(const Letters& letters)
      : raw_(letters.raw),
        low_((1u << letters.raw) - 1),
        tops_(letters.tops),
        radix_(letters.radix),
        half_(letters.width % 2 == 0 ? letters.width / 2 : 0),
        inverse_(InverseOfBase(letters.width)) {}
  uint32_t Index(uint32_t letter, uint32_t* raws) const {
    const uint32_t high =
        half_ != 0 ? letter >> half_ : (letter * inverse_.times >> 16) >> inverse_.shift;
    const uint32_t low = letter - high * radix_;
    *raws = (low & low_) | (high & low_) << raw_;
    return (low >> raw_) + (high >> raw_) * tops_;
  }

 private:
  uint32_t raw_, low_, tops_, radix_, half_;
  PairInverse inverse_;
};

// Appends bits to memory.
struct BitWriter {
  uint8_t* at;
  uint64_t value = 0;
  uint32_t bits = 0;  // below 8 after Flush
  void Put(uint64_t code, uint32_t length) {
    value |= code << bits;
    bits += length;
  }
  void Flush() {
    Store(value, at);
    at += bits / 8;
    value >>= bits & ~7u;
    bits &= 7;
  }
};

void EncodeSuperblock(const Letters& letters, const CodeTable& table, const uint8_t* fields,
                      BitWriter* writer) {
  const uint32_t count = kSuperblock / letters.values, width = letters.bits;
  const uint64_t mask = (uint64_t{1} << width) - 1;
  BitWriter out = *writer;
  if (width <= CodeTable::kDirectBits) {
    for (uint32_t i = 0, at = 0; i < count; i += 4, at += 4 * width) {
      uint64_t four = Load(fields + at / 8) >> at % 8;
      for (uint32_t j = 0; j < 4; ++j, four >>= width) {
        const uint32_t entry = table.encode[four & mask];
        out.Put(entry & 0xffffff, entry >> 24);
      }
      out.Flush();
    }
  } else {
    const Splitter splitter(letters);
    for (uint32_t i = 0, at = 0; i < count; ++i, at += width) {
      uint32_t raws = 0;
      const auto letter = static_cast<uint32_t>(Load(fields + at / 8) >> at % 8 & mask);
      // A value beyond 2 K, which no rank's kernel makes, would not be an index.
      const uint32_t entry = table.encode[splitter.Index(letter, &raws) & 0xff];
      out.Put(entry & 0xffffff, entry >> 24);
      out.Put(raws, 2 * letters.raw);
      out.Flush();
    }
  }
  *writer = out;
}

constexpr uint32_t kMostRaw = 9;  // of a value of kMaxLevels
constexpr size_t kMostRunBytes = kRunElements / 2 * (kCodeBits + 2 * kMostRaw) / 8 + 8;

// A run to be coded: its superblocks that have levels.
struct Run {
  std::array<uint32_t, kRunSuperblocks> k;
  std::array<const uint8_t*, kRunSuperblocks> fields;
  uint32_t superblocks = 0;
  size_t bytes = 0;  // of all fields
};

// The bits of some letters of the run.
uint64_t SampleBits(const Run& run, uint32_t shape) {
  constexpr uint32_t kEvery = 8;
  uint64_t bits = 0;
  for (uint32_t s = 0; s < run.superblocks; ++s) {
    const Letters letters(run.k[s]);
    const CodeTable& table = TableOf(&TablesOf(run.k[s]), run.k[s], shape);
    const bool direct = letters.bits <= CodeTable::kDirectBits;
    const Splitter splitter(letters);
    for (uint32_t i = s; i < kSuperblock / letters.values; i += kEvery) {
      const uint32_t at = i * letters.bits;
      const auto letter = static_cast<uint32_t>(Load(run.fields[s] + at / 8) >> at % 8 &
                                                ((uint64_t{1} << letters.bits) - 1));
      uint32_t raws = 0;
      const uint32_t index = direct ? letter : splitter.Index(letter, &raws) & 0xff;
      bits += table.encode[index] >> 24;
    }
  }
  return bits;
}

// The best shape for the run near another one.
uint32_t ShapeNear(const Run& run, uint32_t shape) {
  uint64_t best = SampleBits(run, shape);
  for (const int step : {1, -1}) {
    const uint32_t begin = shape;
    while (shape + static_cast<uint32_t>(step) < kShapes) {
      const uint64_t bits = SampleBits(run, shape + static_cast<uint32_t>(step));
      if (bits >= best) break;
      best = bits;
      shape += static_cast<uint32_t>(step);
    }
    if (shape != begin) break;
  }
  return shape;
}

// Returns the number of bytes of the run's code.
size_t EncodeRun(const Run& run, uint32_t shape, uint8_t* out) {
  BitWriter writer{out};
  for (uint32_t s = 0; s < run.superblocks; ++s) {
    const CodeTable& table = TableOf(&TablesOf(run.k[s]), run.k[s], shape);
    EncodeSuperblock(Letters(run.k[s]), table, run.fields[s], &writer);
  }
  return static_cast<size_t>(writer.at - out) + (writer.bits + 7) / 8;
}

// ---------------------------------------------------------------- decoding

// A superblock on its way from a code to fields.
struct Decoding {
  const uint8_t* in = nullptr;
  uint64_t at = 0;  // bits
  const CodeTable* table = nullptr;
  uint32_t k = 0;
};

// Decodes letters of `kJobs` superblocks, so that their dependent loads overlap. Of each one there
// are as many as of the others, with `kTogether` codes and raw bits in less than 57 bits.
template <size_t kJobs, uint32_t kTogether>
void DecodeLetters(uint32_t count, std::array<Decoding*, kJobs> jobs,
                   std::array<std::array<uint32_t, kSuperblock / 2>, kJobs>* letters) {
  std::array<uint64_t, kJobs> at, bits{};
  std::array<const uint8_t*, kJobs> in;
  std::array<const uint32_t*, kJobs> table;
  std::array<uint32_t, kJobs> raw, radix;
  for (size_t j = 0; j < kJobs; ++j) {
    const Letters of(jobs[j]->k);
    at[j] = jobs[j]->at;
    in[j] = jobs[j]->in;
    table[j] = jobs[j]->table->decode.data();
    raw[j] = of.raw;
    radix[j] = of.radix;
  }
  for (uint32_t i = 0; i < count; i += kTogether) {
    for (size_t j = 0; j < kJobs; ++j) bits[j] = Load(in[j] + at[j] / 8) >> at[j] % 8;
    for (uint32_t t = 0; t < kTogether; ++t) {
      for (size_t j = 0; j < kJobs; ++j) {
        const uint32_t entry = table[j][bits[j] & ((1u << kCodeBits) - 1)];
        const uint32_t length = entry >> kLengthShift;
        uint32_t letter = entry & ((1u << kLengthShift) - 1);
        bits[j] >>= length;
        at[j] += length;
        if constexpr (kTogether < 4) {
          const uint32_t mask = (1u << raw[j]) - 1;
          const auto low = static_cast<uint32_t>(bits[j]);
          letter += (low & mask) + (low >> raw[j] & mask) * radix[j];
          bits[j] >>= 2 * raw[j];
          at[j] += 2 * raw[j];
        }
        (*letters)[j][i + t] = letter;
      }
    }
  }
  for (size_t j = 0; j < kJobs; ++j) jobs[j]->at = at[j];
}

void PackLetters(const Letters& of, const uint32_t* letters, uint8_t* out) {
  uint8_t packed[PackedBytes(Width(1, kMaxLevels)) + sizeof(uint64_t)];
  BitWriter writer{packed};
  for (uint32_t i = 0; i < kSuperblock / of.values; i += 2) {
    writer.Put(letters[i], of.bits);
    writer.Put(letters[i + 1], of.bits);
    writer.Flush();
  }
  std::memcpy(out, packed, PackedBytes(of.width));
}

uint32_t TogetherOf(const Letters& letters) {
  if (letters.raw == 0) return 4;
  return 2 * (kCodeBits + 2 * letters.raw) <= 57 ? 2 : 1;
}

template <size_t kJobs>
void DecodeSuperblocks(std::array<Decoding*, kJobs> jobs, std::array<uint8_t*, kJobs> fields) {
  std::array<std::array<uint32_t, kSuperblock / 2>, kJobs> letters;
  const Letters first(jobs[0]->k);
  const uint32_t count = kSuperblock / first.values;
  switch (TogetherOf(first)) {
    case 4: DecodeLetters<kJobs, 4>(count, jobs, &letters); break;
    case 2: DecodeLetters<kJobs, 2>(count, jobs, &letters); break;
    default: DecodeLetters<kJobs, 1>(count, jobs, &letters);
  }
  for (size_t j = 0; j < kJobs; ++j) PackLetters(Letters(jobs[j]->k), letters[j].data(), fields[j]);
}

// Whether two superblocks decode in the same steps.
bool AreAlike(uint32_t k, uint32_t other) {
  const Letters a(k), b(other);
  return a.values == b.values && TogetherOf(a) == TogetherOf(b);
}

// A run on its way: its code in memory of its own, with zeros behind it.
struct CodedRun {
  std::array<uint32_t, kRunSuperblocks> k;
  std::array<uint8_t*, kRunSuperblocks> fields;
  uint32_t superblocks = 0, next = 0, shape = 0;
  size_t bytes = 0;
  Decoding decoding;
  // Zeros for what one superblock may read beyond the end.
  std::array<uint8_t, 4096 + kSuperblock / 2 * (kCodeBits + 2 * kMostRaw) / 8 + 16> code;

  bool done() const { return next == superblocks; }
  // Sets the next superblock. False if the code has ended before.
  bool Begin() {
    if (decoding.at > 8 * bytes) return false;
    decoding.k = k[next];
    decoding.table = &TableOf(&TablesOf(k[next]), k[next], shape);
    return true;
  }
  // Whether the code ends with the last letter, and zeros up to a whole byte.
  bool EndsWell() const {
    if (decoding.at > 8 * bytes || (decoding.at + 7) / 8 != bytes) return false;
    return decoding.at % 8 == 0 || code[decoding.at / 8] >> decoding.at % 8 == 0;
  }
};

// Decodes runs beside each other. False if one is malformed.
constexpr size_t kAbreast = 4;
bool DecodeRuns(std::span<CodedRun> runs) {
  for (;;) {
    std::array<CodedRun*, kAbreast> ready{};
    size_t count = 0;
    for (CodedRun& run : runs) {
      if (run.done()) continue;
      if (!run.Begin()) return false;
      if (count == 0 || AreAlike(ready[0]->decoding.k, run.decoding.k)) ready[count++] = &run;
    }
    if (count == 0) break;
    const auto take = [&]<size_t kJobs>(std::integral_constant<size_t, kJobs>) {
      std::array<Decoding*, kJobs> jobs;
      std::array<uint8_t*, kJobs> fields;
      for (size_t j = 0; j < kJobs; ++j) {
        jobs[j] = &ready[j]->decoding;
        fields[j] = ready[j]->fields[ready[j]->next++];
      }
      DecodeSuperblocks<kJobs>(jobs, fields);
    };
    switch (count) {
      case 1: take(std::integral_constant<size_t, 1>()); break;
      case 2: take(std::integral_constant<size_t, 2>()); break;
      case 3: take(std::integral_constant<size_t, 3>()); break;
      default: take(std::integral_constant<size_t, 4>());
    }
  }
  return std::all_of(runs.begin(), runs.end(), [](const CodedRun& run) { return run.EndsWell(); });
}

}  // namespace

CodeLengths LengthsOf(uint32_t k, uint32_t shape) { return LengthsFor(WeightsOf(k, shape)); }

uint32_t Cost64(uint32_t k, uint32_t shape) {
  const Letters letters(k);
  const std::vector<uint64_t> weights = WeightsOf(k, shape);
  const CodeLengths lengths = LengthsFor(weights);
  uint64_t total = 0, bits = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    total += weights[i];
    bits += weights[i] * lengths.bits[i];
  }
  total *= letters.values;
  return static_cast<uint32_t>((64 * bits + total - 1) / total) + 64 * letters.raw + 1;
}

uint32_t ShapeOfSum(uint32_t k, uint32_t nranks) {
  const auto spread = static_cast<uint32_t>(std::bit_width(nranks - 1));
  return std::min(5u, 2 + spread) - (k == 1 ? 1 : 0);
}

uint32_t ShapeOfResult(uint32_t k) { return std::min(k - 1, 2u); }

size_t EntropyEncode(std::span<const uint16_t> levels, const uint8_t* fields, uint8_t* out) {
  uint8_t* head = out;
  uint8_t* at = out + HeadBytes(levels.size());
  uint32_t shape = 4;
  uint8_t code[kMostRunBytes];
  for (size_t s = 0; s < levels.size(); s += kRunSuperblocks, head += kHeadBytes) {
    Run run;
    for (size_t i = s; i < std::min(s + kRunSuperblocks, levels.size()); ++i) {
      if (levels[i] == 0) continue;
      run.k[run.superblocks] = levels[i];
      run.fields[run.superblocks++] = fields + run.bytes;
      run.bytes += PackedBytes(Width(1, levels[i]));
    }
    shape = ShapeNear(run, shape);
    const size_t bytes = EncodeRun(run, shape, code);
    const bool pays = bytes < run.bytes;
    const auto what = static_cast<uint16_t>(pays ? shape << 12 | bytes : kPacked << 12);
    std::memcpy(head, &what, sizeof what);
    std::memcpy(at, pays ? code : fields, pays ? bytes : run.bytes);
    at += pays ? bytes : run.bytes;
    fields += run.bytes;
  }
  return static_cast<size_t>(at - out);
}

bool EntropyDecode(std::span<const uint16_t> levels, const uint8_t* in, size_t bytes,
                   uint8_t* fields) {
  const size_t heads = HeadBytes(levels.size());
  if (bytes < heads) return false;
  const uint8_t* const end = in + bytes;
  const uint8_t* at = in + heads;
  std::array<CodedRun, kAbreast> runs;
  size_t coded = 0;
  for (size_t s = 0; s < levels.size(); s += kRunSuperblocks, in += kHeadBytes) {
    CodedRun& run = runs[coded];
    run.superblocks = run.next = 0;
    size_t packed = 0;
    for (size_t i = s; i < std::min(s + kRunSuperblocks, levels.size()); ++i) {
      if (levels[i] == 0) continue;
      run.k[run.superblocks] = levels[i];
      run.fields[run.superblocks++] = fields + packed;
      packed += PackedBytes(Width(1, levels[i]));
    }
    uint16_t head;
    std::memcpy(&head, in, sizeof head);
    run.shape = head >> 12;
    run.bytes = head & 0xfff;
    const bool plain = run.shape == kPacked;
    if (plain ? run.bytes != 0 : run.bytes >= packed) return false;
    if (plain) run.bytes = packed;
    if (run.bytes > static_cast<size_t>(end - at)) return false;
    if (plain) {
      std::memcpy(fields, at, packed);
    } else {
      std::memcpy(run.code.data(), at, run.bytes);
      std::memset(run.code.data() + run.bytes, 0, run.code.size() - run.bytes);
      run.decoding = {.in = run.code.data()};
      if (++coded == kAbreast && !DecodeRuns({runs.data(), std::exchange(coded, 0)})) return false;
    }
    at += run.bytes;
    fields += packed;
  }
  return at == end && DecodeRuns({runs.data(), coded});
}

}  // namespace inccl::hbi
