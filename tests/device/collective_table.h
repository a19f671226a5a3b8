// SPDX-License-Identifier: Apache-2.0
//
// Every collective as a row of a table: how much a rank gives and gets, and its call.
#ifndef INCCL_TESTS_DEVICE_COLLECTIVE_TABLE_H_
#define INCCL_TESTS_DEVICE_COLLECTIVE_TABLE_H_

#include <cstddef>
#include <utility>

#include "inccl/ccl.h"

namespace inccl::test {

enum class InPlace {
  kNo,
  kSame,        // recv == send
  kRecvInSend,  // recv is this rank's segment of send
  kSendInRecv,  // the reverse
};

struct Collective {
  const char* name;
  bool compresses;
  InPlace in_place;
  // On floats; `with`: nullptr, or where it compresses.
  ccl_result_t (*call)(const void* send, void* recv, size_t count, const ccl_compression_t* with,
                       ccl_comm_t comm, ccl_stream_t stream);
};

inline const Collective kCollectives[] = {
    {"allreduce", true, InPlace::kSame,
     [](auto* s, auto* r, size_t n, auto* with, ccl_comm_t c, ccl_stream_t t) {
       if (with == nullptr) return ccl_allreduce(s, r, n, CCL_FLOAT32, CCL_SUM, c, t);
       return ccl_allreduce_compressed(s, r, n, CCL_FLOAT32, CCL_SUM, with, c, t);
     }},
    {"allreduce of averages", true, InPlace::kSame,
     [](auto* s, auto* r, size_t n, auto* with, ccl_comm_t c, ccl_stream_t t) {
       if (with == nullptr) return ccl_allreduce(s, r, n, CCL_FLOAT32, CCL_AVG, c, t);
       return ccl_allreduce_compressed(s, r, n, CCL_FLOAT32, CCL_AVG, with, c, t);
     }},
    {"allreduce of averages of integers", false, InPlace::kSame,
     [](auto* s, auto* r, size_t n, auto*, ccl_comm_t c, ccl_stream_t t) {
       return ccl_allreduce(s, r, n, CCL_INT32, CCL_AVG, c, t);
     }},
    {"reduce_scatter", true, InPlace::kRecvInSend,
     [](auto* s, auto* r, size_t n, auto* with, ccl_comm_t c, ccl_stream_t t) {
       if (with == nullptr) return ccl_reduce_scatter(s, r, n, CCL_FLOAT32, CCL_SUM, c, t);
       return ccl_reduce_scatter_compressed(s, r, n, CCL_FLOAT32, CCL_SUM, with, c, t);
     }},
    {"allgather", true, InPlace::kSendInRecv,
     [](auto* s, auto* r, size_t n, auto* with, ccl_comm_t c, ccl_stream_t t) {
       if (with == nullptr) return ccl_allgather(s, r, n, CCL_FLOAT32, c, t);
       return ccl_allgather_compressed(s, r, n, CCL_FLOAT32, with, c, t);
     }},
    {"broadcast", false, InPlace::kSame,
     [](auto* s, auto* r, size_t n, auto*, ccl_comm_t c, ccl_stream_t t) {
       return ccl_broadcast(s, r, n, CCL_FLOAT32, 1, c, t);
     }},
    {"reduce", false, InPlace::kSame,
     [](auto* s, auto* r, size_t n, auto*, ccl_comm_t c, ccl_stream_t t) {
       return ccl_reduce(s, r, n, CCL_FLOAT32, CCL_SUM, 1, c, t);
     }},
    {"alltoall", false, InPlace::kNo,
     [](auto* s, auto* r, size_t n, auto*, ccl_comm_t c, ccl_stream_t t) {
       return ccl_alltoall(s, r, n, CCL_FLOAT32, c, t);
     }},
    {"gather", false, InPlace::kSendInRecv,
     [](auto* s, auto* r, size_t n, auto*, ccl_comm_t c, ccl_stream_t t) {
       return ccl_gather(s, r, n, CCL_FLOAT32, 0, c, t);
     }},
    {"scatter", false, InPlace::kRecvInSend,
     [](auto* s, auto* r, size_t n, auto*, ccl_comm_t c, ccl_stream_t t) {
       return ccl_scatter(s, r, n, CCL_FLOAT32, 0, c, t);
     }},
};

// Where a rank's send and recv begin in a buffer of 2 nranks segments of `count`.
inline std::pair<size_t, size_t> Places(const Collective& c, bool in_place, int rank, int nranks,
                                        size_t count) {
  const size_t own = static_cast<size_t>(rank) * count;
  if (!in_place) return {0, static_cast<size_t>(nranks) * count};
  return {c.in_place == InPlace::kSendInRecv ? own : 0,
          c.in_place == InPlace::kRecvInSend ? own : 0};
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_DEVICE_COLLECTIVE_TABLE_H_
