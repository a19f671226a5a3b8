// SPDX-License-Identifier: Apache-2.0
//
// Which lanes of a vector of up to 8 have a bit in a mask.
#ifndef INCCL_COMPRESS_KERNELS_SELECT_TABLES_H_
#define INCCL_COMPRESS_KERNELS_SELECT_TABLES_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace inccl::select {

struct TakenLanes {
  uint8_t places[8] = {}, count = 0;
};

inline constexpr std::array<TakenLanes, 256> kTakenLanes = [] {
  std::array<TakenLanes, 256> table{};
  for (size_t mask = 0; mask < table.size(); ++mask) {
    for (uint8_t lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) != 0) table[mask].places[table[mask].count++] = lane;
    }
  }
  return table;
}();

}  // namespace inccl::select

#endif  // INCCL_COMPRESS_KERNELS_SELECT_TABLES_H_
