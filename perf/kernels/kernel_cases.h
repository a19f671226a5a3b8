// SPDX-License-Identifier: Apache-2.0
//
// The kernels of src/compress/kernels as things to measure: each works through a number of
// superblocks of one workspace.
#ifndef INCCL_PERF_KERNELS_KERNEL_CASES_H_
#define INCCL_PERF_KERNELS_KERNEL_CASES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace inccl::perf {

// 16384 elements: 64 KiB of fp32, so that a workspace fits into a second-level cache.
inline constexpr uint32_t kCaseSuperblocks = 64;

struct KernelCase {
  std::string name;
  double bytes = 0;            // read and written, per element
  bool every_target = true;    // whether it differs between instruction sets
  bool counts_exactly = true;  // false: instructions that repeat themselves inside (memcpy)
  uint32_t counted = 1;        // superblocks after which its instructions repeat
  // Handles this many superblocks (up to those of the workspace) with the kernels of the
  // instruction set in use (compress/simd.h).
  std::function<void(uint32_t superblocks)> run;
  // Instructions per element for AVX-512, AVX2, and AVX-512 with VBMI where it differs from AVX-512
  // (docs/scripts.md, "Goals").
  struct Goal {
    double avx512, avx2, vbmi = avx512;
  };
  std::optional<Goal> goal = std::nullopt;
};

class KernelWorkspace;

// All cases; they live as long as the workspace.
class KernelCases {
 public:
  // `superblocks`: of the workspace. Whole codecs are among those of kCaseSuperblocks only.
  explicit KernelCases(uint32_t superblocks = kCaseSuperblocks);
  ~KernelCases();
  KernelCases(const KernelCases&) = delete;
  KernelCases& operator=(const KernelCases&) = delete;
  const std::vector<KernelCase>& all() const { return cases_; }

 private:
  void Add(KernelCase kernel) { cases_.push_back(std::move(kernel)); }
  void AddBaselines();
  void AddScales();
  void AddPacked();
  void AddOdd();
  void AddSlices();
  void AddTiles();
  void AddTypes();
  void AddSelection();

  std::unique_ptr<KernelWorkspace> work_;
  std::vector<KernelCase> cases_;
};

}  // namespace inccl::perf

#endif  // INCCL_PERF_KERNELS_KERNEL_CASES_H_
