// SPDX-License-Identifier: Apache-2.0
//
// Element types, reductions and collectives, with the numbers of the C API.
#ifndef INCCL_BASE_TYPES_H_
#define INCCL_BASE_TYPES_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace inccl {

enum class DataType : uint8_t {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8E4M3 = 10,
  kFloat8E5M2 = 11,
};
inline constexpr int kDataTypes = 12;

// kPreMulSum is the sum of every rank's elements times that rank's scalar. In the C API each
// operation that a user creates from it has its own number, above all of these.
enum class ReduceOp : uint8_t {
  kSum = 0,
  kProd = 1,
  kMax = 2,
  kMin = 3,
  kAvg = 4,
  kPreMulSum = 5,
};
inline constexpr int kReduceOps = 5;  // those with a constant number in the C API
inline constexpr int kReduceOpKinds = 6;

// A number of some element type: the first SizeOf(type) bytes hold it as in memory.
using Scalar = std::array<std::byte, 8>;

// The kind of a call. Schedules, signatures and errors use the same names.
enum class Collective : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kReduce,
  kAllToAll,
  kGather,
  kScatter,
};
inline constexpr int kCollectiveKinds = 8;

// True if the call combines elements of several ranks; false if it only moves them.
constexpr bool Reduces(Collective which) {
  return which == Collective::kAllReduce || which == Collective::kReduceScatter ||
         which == Collective::kReduce;
}

// True if the call has a root rank.
constexpr bool HasRoot(Collective which) {
  return which == Collective::kBroadcast || which == Collective::kReduce ||
         which == Collective::kGather || which == Collective::kScatter;
}

// The number of segments of `count` elements in a call of n ranks. 1: the buffers of all ranks are
// the same vector. n: segment r belongs to rank r. n * n: segment s * n + d goes from rank s to
// rank d.
constexpr uint64_t SegmentsOf(Collective which, uint64_t nranks) {
  switch (which) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce: return 1;
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kScatter: return nranks;
    case Collective::kAllToAll: return nranks * nranks;
  }
  return 1;
}

constexpr size_t SizeOf(DataType type) {
  switch (type) {
    case DataType::kInt8:
    case DataType::kUint8:
    case DataType::kFloat8E4M3:
    case DataType::kFloat8E5M2: return 1;
    case DataType::kFloat16:
    case DataType::kBfloat16: return 2;
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kFloat32: return 4;
    case DataType::kInt64:
    case DataType::kUint64:
    case DataType::kFloat64: return 8;
  }
  return 0;
}

constexpr bool IsFloat(DataType type) { return type >= DataType::kFloat16; }

const char* Name(DataType type);     // "float32", ...
const char* Name(ReduceOp op);       // "sum", ...
const char* Name(Collective which);  // "allreduce", "reduce_scatter", ...

// The arguments of one collective on one rank. Whatever needs more of a call derives from it.
struct CollectiveArgs {
  Collective collective = Collective::kAllReduce;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  Scalar scalar{};  // kPreMulSum: factor of this rank's elements; the ranks' may differ
  int nranks = 1;
  int rank = 0;
  int root = 0;
  uint64_t count = 0;           // elements of one vector (SegmentsOf)
  uint64_t seed = 0, step = 0;  // of a codec's random numbers

  size_t bytes() const { return count * SizeOf(type); }  // of one vector
};

// The most ranks of a communicator.
inline constexpr int kMaxRanks = 4096;

}  // namespace inccl

#endif  // INCCL_BASE_TYPES_H_
