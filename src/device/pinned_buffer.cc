// SPDX-License-Identifier: Apache-2.0
#include "device/pinned_buffer.h"

#include <algorithm>
#include <bit>

namespace inccl {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kLeastBlock = size_t{256} << 10;

}  // namespace

PinnedBuffer::~PinnedBuffer() {
  for (const Block& block : blocks_) device_->FreeHost(block.data);
}

Result<std::byte*> PinnedBuffer::Take(size_t bytes) {
  const size_t size = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  while (block_ < blocks_.size() && size > blocks_[block_].bytes - used_) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    blocks_.reserve(blocks_.size() + 1);
    const size_t more = std::bit_ceil(std::max(size, kLeastBlock));
    Result<std::byte*> memory = device_->AllocateHost(more);
    if (!memory.ok()) return memory.status();
    blocks_.push_back({*memory, more});
    used_ = 0;
  }
  std::byte* const taken = blocks_[block_].data + used_;
  used_ += size;
  return taken;
}

void PinnedBuffer::GiveBack() {
  // Keeps the blocks: merging them into one would cost an allocation.
  block_ = 0;
  used_ = 0;
}

}  // namespace inccl
