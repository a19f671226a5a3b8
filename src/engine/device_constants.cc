// SPDX-License-Identifier: Apache-2.0
#include "engine/device_constants.h"

#include <algorithm>
#include <iterator>

namespace inccl {
namespace {

size_t Aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

DeviceConstants::~DeviceConstants() {
  for (std::byte* memory : memory_) device_->FreeOn(number_, memory);
}

// Memory is freed only at the end: freeing may wait for streams that wait for the current call.
Status DeviceConstants::Grow(size_t bytes) {
  memory_.reserve(memory_.size() + 1);
  Result<std::byte*> memory = device_->AllocateOn(number_, bytes);
  if (!memory.ok()) return memory.status();
  memory_.push_back(*memory);
  next_ = *memory;
  left_ = bytes;
  return Status::Ok();
}

Result<const std::byte*> DeviceConstants::On(std::span<const std::byte> bytes,
                                             const std::shared_ptr<const void>& owner) {
  const auto found = known_.find(bytes.data());
  if (found != known_.end()) return static_cast<const std::byte*>(found->second.copy.data());
  // Reuses the copies whose owners have gone: no call asks for those constants again.
  free_.reserve(free_.size() + known_.size());
  for (auto it = known_.begin(); it != known_.end();) {
    const bool held = it->second.owner.use_count() > 1;
    if (!held) free_.push_back(it->second.copy);
    it = held ? std::next(it) : known_.erase(it);
  }
  Result<std::byte*> pinned = here_.Take(bytes.size());
  if (!pinned.ok()) return pinned.status();
  std::copy(bytes.begin(), bytes.end(), *pinned);
  const Result<std::byte*> room = Room(bytes.size());
  Status status = room.ok() ? device_->Copy(*room, *pinned, bytes.size()) : room.status();
  here_.GiveBack();
  if (!status.ok()) return status;
  known_.emplace(bytes.data(), Known{.owner = owner, .copy = {*room, bytes.size()}});
  return static_cast<const std::byte*>(*room);
}

Result<std::byte*> DeviceConstants::Room(size_t bytes) {
  const auto fits = std::find_if(
      free_.begin(), free_.end(),
      [bytes](const std::span<std::byte>& free) { return Aligned(free.size()) == Aligned(bytes); });
  if (fits != free_.end()) {
    std::byte* const room = fits->data();
    free_.erase(fits);
    return room;
  }
  if (bytes > left_) {
    if (Status status = Grow(std::max(Aligned(bytes), kAtOnce)); !status.ok()) return status;
  }
  std::byte* const room = next_;
  const size_t taken = std::min(left_, Aligned(bytes));
  next_ += taken;
  left_ -= taken;
  return room;
}

}  // namespace inccl
