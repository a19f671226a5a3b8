// SPDX-License-Identifier: Apache-2.0
#include "collectives/call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/bytes.h"
#include "base/rng.h"
#include "base/text.h"

namespace inccl {
namespace {

// Hashes whole words, because specifications are long and every call hashes one.
uint64_t HashText(std::string_view text) {
  uint64_t hash = text.size();
  uint64_t word = 0;
  while (text.size() >= sizeof word) {
    std::memcpy(&word, text.data(), sizeof word);
    hash = Mix64(hash ^ word);
    text.remove_prefix(sizeof word);
  }
  word = 0;
  for (const char c : text) word = word << 8 | static_cast<uint8_t>(c);
  return Mix64(hash ^ word);
}

}  // namespace

Extent ExtentOf(Collective collective, uint64_t count, int nranks, bool is_root) {
  const uint64_t all = count * static_cast<uint64_t>(nranks);
  switch (collective) {
    case Collective::kReduceScatter: return {all, count};
    case Collective::kAllGather: return {count, all};
    case Collective::kBroadcast: return {is_root ? count : 0, count};
    case Collective::kReduce: return {count, is_root ? count : 0};
    case Collective::kAllToAll: return {all, all};
    case Collective::kGather: return {count, is_root ? all : 0};
    case Collective::kScatter: return {is_root ? all : 0, count};
    case Collective::kAllReduce: break;
  }
  return {count, count};
}

Extent ExtentOf(const Call& call, int rank, int nranks) {
  switch (call.kind) {
    case CallKind::kSend: return {call.count, 0};
    case CallKind::kRecv: return {0, call.count};
    case CallKind::kCollective: break;
  }
  return ExtentOf(call.collective, call.count, nranks, call.root == rank);
}

std::span<std::byte> InPlace(const Call& call, int rank) {
  const size_t bytes = call.bytes();
  if (bytes == 0 || call.recv == nullptr || call.send == nullptr) return {};
  const auto* send = static_cast<const std::byte*>(call.send);
  auto* recv = static_cast<std::byte*>(call.recv);
  const size_t offset = static_cast<size_t>(rank) * bytes;
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce: return send == recv ? std::span(recv, bytes) : std::span<std::byte>();
    case Collective::kAllToAll:
      return send == recv ? std::span(recv, bytes * static_cast<size_t>(call.nranks))
                          : std::span<std::byte>();
    // The output is this rank's own segment of the input, which the other ranks do not need.
    case Collective::kReduceScatter:
      return send + offset == recv ? std::span(recv, bytes) : std::span<std::byte>();
    default: return {};  // such a call does not change its input
  }
}

void CallRecord::Set(uint64_t sequence_number, const Call& call) {
  sequence = sequence_number;
  purpose = call.purpose;
  static_cast<CollectiveArgs&>(*this) = call;
  if (call.reducer != nullptr) {
    codec.assign(call.reducer->identity());
  } else {
    codec.assign(call.codec == nullptr ? std::string_view("none") : call.codec->identity());
  }
  if (call.vectors == nullptr) return;
  uint64_t lengths = 0;
  for (const FusedVector& vector : *call.vectors) lengths = Mix64(lengths ^ vector.count);
  codec += fmt::format(" on {} vectors of lengths {:016x}", call.vectors->size(), lengths);
}

uint64_t CallRecord::Signature() const {
  const uint64_t kinds = uint64_t{static_cast<uint8_t>(purpose)} << 56 |
                         uint64_t{static_cast<uint8_t>(collective)} << 48 |
                         uint64_t{static_cast<uint8_t>(type)} << 40 |
                         uint64_t{static_cast<uint8_t>(op)} << 32 | static_cast<uint32_t>(root);
  // Each field has its own salt, so the hashes do not depend on each other.
  return Mix64(Mix64(sequence) ^ Mix64(kinds ^ 0xD6E8FEB86659FD93u) ^
               Mix64(count ^ 0xA0761D6478BD642Fu) ^ Mix64(seed ^ 0xE7037ED1A0B428DBu) ^
               Mix64(step ^ 0x8EBC6AF09C88C6E3u) ^ Mix64(HashText(codec) ^ 0x589965CC75374CC3u));
}

bool CallRecord::SameCall(const CallRecord& other) const {
  return purpose == other.purpose && collective == other.collective && type == other.type &&
         op == other.op && root == other.root && count == other.count && seed == other.seed &&
         step == other.step && codec == other.codec;
}

std::string CallRecord::ToString() const {
  if (purpose == Purpose::kSplit) return "split()";
  if (purpose == Purpose::kGrow) return "grow()";
  std::string text = fmt::format("{}(count={}, {}", Name(collective), count, Name(type));
  if (Reduces(collective)) text += fmt::format(", {}", Name(op));
  if (HasRoot(collective)) text += fmt::format(", root={}", root);
  if (codec != "none") {
    const bool reducer = codec.find('|') != std::string::npos;
    text += fmt::format(", {}={}, seed={}, step={}", reducer ? "reducer" : "codec", Escaped(codec),
                        seed, step);
  }
  return text + ")";
}

std::vector<std::byte> CallRecord::Encode() const {
  ByteWriter writer;
  writer.U64(sequence);
  writer.U8(static_cast<uint8_t>(purpose));
  writer.U8(static_cast<uint8_t>(collective));
  writer.U8(static_cast<uint8_t>(type));
  writer.U8(static_cast<uint8_t>(op));
  writer.U32(static_cast<uint32_t>(root));
  writer.U64(count);
  writer.U64(seed);
  writer.U64(step);
  writer.String(codec);
  return {writer.bytes().begin(), writer.bytes().end()};
}

Result<CallRecord> CallRecord::Decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  CallRecord record;
  uint8_t purpose = 0, collective = 0, type = 0, op = 0;
  uint32_t root = 0;
  if (!reader.U64(&record.sequence) || !reader.U8(&purpose) || !reader.U8(&collective) ||
      !reader.U8(&type) || !reader.U8(&op) || !reader.U32(&root) || !reader.U64(&record.count) ||
      !reader.U64(&record.seed) || !reader.U64(&record.step) || !reader.String(&record.codec) ||
      reader.remaining() != 0 || purpose >= kPurposes || collective >= kCollectiveKinds ||
      type >= kDataTypes || op >= kReduceOpKinds) {
    return InternalError("malformed record of a call");
  }
  record.purpose = static_cast<Purpose>(purpose);
  record.collective = static_cast<Collective>(collective);
  record.type = static_cast<DataType>(type);
  record.op = static_cast<ReduceOp>(op);
  record.root = static_cast<int32_t>(root);
  return record;
}

namespace {

struct Share {
  uint64_t first, count;
};

// Share `index` of `total` items dealt to `parts`: the first (total mod parts) shares have one
// more.
Share Deal(uint64_t total, uint64_t parts, uint64_t index) {
  const uint64_t each = total / parts, extra = total % parts;
  return {index * each + std::min(index, extra), each + (index < extra ? 1 : 0)};
}

// Whether each chunk is a segment of its own; otherwise chunks are parts of the only segment.
bool Segmented(Collective collective) { return SegmentsOf(collective, 2) > 1; }

}  // namespace

Chunking::Chunking(const ChunkingOptions& options)
    : options_(options),
      windows_((options.count + options.window_elements - 1) / options.window_elements) {}

Range Chunking::Part(uint64_t window, const Phase& phase, uint32_t chunk, uint32_t channel) const {
  const uint64_t begin = window * options_.window_elements;
  const uint64_t length = std::min(options_.window_elements, options_.count - begin);
  const bool segmented = Segmented(options_.collective);
  Share share{0, (length + kSuperblock - 1) / kSuperblock};
  if (!segmented) share = Deal(share.count, phase.chunks, chunk);
  const Share sub = Deal(share.count, phase.channels, channel);
  const uint64_t first = std::min(length, (share.first + sub.first) * kSuperblock);
  const uint64_t end = std::min(length, (share.first + sub.first + sub.count) * kSuperblock);
  return {segmented ? chunk : 0, begin + first, static_cast<uint32_t>(end - first)};
}

Range Chunking::Slice(const Range& part, const Phase& phase, uint32_t index) const {
  const uint32_t slice = SliceElements(phase);
  const uint32_t offset = index * slice;
  return {part.segment, part.first + offset, std::min(slice, part.count - offset)};
}

uint64_t Chunking::InputSegment(uint64_t segment) const {
  switch (options_.collective) {
    case Collective::kReduceScatter:
    case Collective::kScatter: return segment;
    case Collective::kAllToAll: return segment % static_cast<uint64_t>(options_.nranks);
    default: return 0;
  }
}

uint64_t Chunking::OutputSegment(uint64_t segment) const {
  switch (options_.collective) {
    case Collective::kAllGather:
    case Collective::kGather: return segment;
    case Collective::kAllToAll: return segment / static_cast<uint64_t>(options_.nranks);
    default: return 0;
  }
}

}  // namespace inccl
