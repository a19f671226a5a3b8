// SPDX-License-Identifier: Apache-2.0
#include "perf/support/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string_view>

namespace inccl::perf {
namespace {

constexpr size_t kMaxSizes = 100000;

// Bytes of a unit: "", "K", "KB", "KiB", ...; 0 if it is none.
double UnitOf(std::string_view unit) {
  if (unit.empty() || unit == "B" || unit == "b") return 1;
  const std::string_view rest = unit.substr(1);
  if (!rest.empty() && rest != "B" && rest != "iB" && rest != "b") return 0;
  switch (std::toupper(static_cast<unsigned char>(unit[0]))) {
    case 'K': return 0x1p10;
    case 'M': return 0x1p20;
    case 'G': return 0x1p30;
    default: return 0;
  }
}

}  // namespace

bool HasInPlace(Operation operation) {
  return operation != Operation::kAllToAll && operation != Operation::kSendRecv;
}

bool HasCompressed(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kReduceScatter ||
         operation == Operation::kAllGather;
}

bool ReplicatesResult(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kAllGather ||
         operation == Operation::kBroadcast;
}

Layout LayoutOf(Operation operation, uint64_t bytes, DataType type, int nranks, int rank) {
  const uint64_t element = SizeOf(type);
  const auto n = static_cast<uint64_t>(nranks);
  const auto r = static_cast<uint64_t>(rank);
  Layout layout;
  const bool segments =
      operation != Operation::kSendRecv && SegmentsOf(static_cast<Collective>(operation), 2) > 1;
  const uint64_t granule = 16 / element;
  layout.count = segments ? bytes / element / n / granule * granule : bytes / element;
  layout.send = layout.recv = layout.count;
  switch (operation) {
    case Operation::kReduceScatter:
    case Operation::kScatter:
      layout.send = layout.count * n;
      layout.in_place_recv = layout.count * r;
      break;
    case Operation::kAllGather:
    case Operation::kGather:
      layout.recv = layout.count * n;
      layout.in_place_send = layout.count * r;
      break;
    case Operation::kAllToAll: layout.send = layout.recv = layout.count * n; break;
    case Operation::kAllReduce:
    case Operation::kBroadcast:
    case Operation::kReduce:
    case Operation::kSendRecv: break;
  }
  layout.in_place = std::max(layout.send, layout.recv);
  layout.bytes = layout.in_place * element;
  return layout;
}

double AlgorithmBandwidth(uint64_t bytes, double microseconds) {
  return microseconds > 0 ? static_cast<double>(bytes) / microseconds * 1e-3 : 0;
}

double BusFactor(Operation operation, int nranks) {
  const double part = static_cast<double>(nranks - 1) / nranks;
  switch (operation) {
    case Operation::kAllReduce: return 2 * part;
    case Operation::kReduceScatter:
    case Operation::kAllGather:
    case Operation::kAllToAll:
    case Operation::kGather:
    case Operation::kScatter: return part;
    case Operation::kBroadcast:
    case Operation::kReduce:
    case Operation::kSendRecv: return 1;
  }
  return 1;
}

Result<std::vector<uint64_t>> Sweep(uint64_t min, uint64_t max, uint64_t step, uint64_t factor) {
  if (min > max) {
    return InvalidArgument(fmt::format("minbytes {} is larger than maxbytes {}", min, max));
  }
  std::vector<uint64_t> sizes;
  for (uint64_t size = min;; size = factor > 1 ? size * factor : size + step) {
    sizes.push_back(size);
    if (size == max) break;
    if (sizes.size() >= kMaxSizes || (factor > 1 ? size == 0 : step == 0)) {
      return InvalidArgument(
          fmt::format("the sizes from {} to {} by stepfactor {}, stepbytes {} do not end", min, max,
                      factor, step));
    }
    if (factor > 1 ? size > max / factor : step > max - size) break;
  }
  return sizes;
}

Result<uint64_t> ParseSize(const std::string& text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  const double unit = UnitOf({parsed.ptr, static_cast<size_t>(end - parsed.ptr)});
  if (parsed.ec != std::errc() || unit == 0 || !(number >= 0) || number * unit > 0x1p50) {
    return InvalidArgument(fmt::format("'{}' is not a size: 64, 4K, 1.5M, 2G", text));
  }
  return static_cast<uint64_t>(number * unit);
}

}  // namespace inccl::perf
