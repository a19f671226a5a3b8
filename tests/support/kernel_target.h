// SPDX-License-Identifier: Apache-2.0
//
// What runs the CUDA kernels in a test: a GPU (tests/cuda), or the same kernel bodies on an
// emulated warp (tests/compress). Either way through compress/cuda/launch.h's table.
#ifndef INCCL_TESTS_SUPPORT_KERNEL_TARGET_H_
#define INCCL_TESTS_SUPPORT_KERNEL_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compress/cuda/launch.h"

namespace inccl::test {

class KernelTarget {
 public:
  virtual ~KernelTarget() = default;
  virtual const cuda::Launchers& launchers() const = 0;
  // Memory that kernels can reach, aligned to 256 bytes.
  virtual void* Allocate(size_t bytes) = 0;
  virtual void Free(void* memory) = 0;
  virtual void Write(void* to, const void* from, size_t bytes) = 0;
  // After all kernels that were launched before; fails the test where one of them failed.
  virtual void Read(void* to, const void* from, size_t bytes) = 0;
};

// Bytes of a target, between guards: what is written beside them is found by Take.
class TargetBytes {
 public:
  static constexpr size_t kGuard = 256;

  // `offset`: from an address aligned to 256 bytes.
  TargetBytes(KernelTarget* target, size_t bytes, size_t offset = 0);
  template <class T>
  TargetBytes(KernelTarget* target, const std::vector<T>& values, size_t offset = 0)
      : TargetBytes(target, values.size() * sizeof(T), offset) {
    Put(values.data(), bytes_);
  }
  ~TargetBytes();
  TargetBytes(const TargetBytes&) = delete;
  TargetBytes& operator=(const TargetBytes&) = delete;

  template <class T = uint8_t>
  T* data() const {
    return reinterpret_cast<T*>(memory_ + kGuard + offset_);
  }
  size_t size() const { return bytes_; }
  void Put(const void* from, size_t bytes);
  // All of them; fails the test where a guard has changed.
  std::vector<uint8_t> Take() const;

 private:
  size_t Whole() const { return bytes_ + offset_ + 2 * kGuard; }

  KernelTarget* target_;
  size_t bytes_, offset_;
  uint8_t* memory_;
};

// The kernels' bodies in lanes on the CPU, in this process' memory.
class EmulatedTarget final : public KernelTarget {
 public:
  const cuda::Launchers& launchers() const override;
  void* Allocate(size_t bytes) override;
  void Free(void* memory) override;
  void Write(void* to, const void* from, size_t bytes) override;
  void Read(void* to, const void* from, size_t bytes) override;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_SUPPORT_KERNEL_TARGET_H_
