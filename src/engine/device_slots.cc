// SPDX-License-Identifier: Apache-2.0
#include "engine/device_slots.h"

#include <iterator>

#include "base/log.h"

namespace inccl {

DeviceSlots::~DeviceSlots() {
  for (const auto& [begin, piece] : pieces_) {
    if (piece.registered) device_->Unregister(piece.begin);
  }
}

void DeviceSlots::Update() {
  spans_.clear();
  transport_->SlotMemory(&spans_);
  for (const Span& span : spans_) {
    const std::byte*& known = ends_[span.data];
    if (known == nullptr) known = span.data;
    const std::byte* const end = span.data + span.bytes;
    if (known >= end) continue;
    Piece piece{.begin = span.data + (known - span.data),
                .bytes = static_cast<size_t>(end - known)};
    known = end;
    const Status status = device_->Register(piece.begin, piece.bytes);
    piece.registered = status.ok();
    if (status.ok()) {
      piece.address = static_cast<std::byte*>(device_->AddressOf(number_, piece.begin));
    } else {
      Log(LogLevel::kInfo, LogSubsystem::kTransport,
          "device {} does not reach {} bytes of slots, which costs copies: {}", number_,
          piece.bytes, status.message());
    }
    pieces_[piece.begin] = piece;
  }
}

const DeviceSlots::Piece* DeviceSlots::Known(const std::byte* host, size_t bytes) const {
  const auto after = pieces_.upper_bound(host);
  if (after == pieces_.begin()) return nullptr;
  const Piece& piece = std::prev(after)->second;
  const auto offset = static_cast<size_t>(host - piece.begin);
  return offset < piece.bytes && bytes <= piece.bytes - offset ? &piece : nullptr;
}

const DeviceSlots::Piece* DeviceSlots::Find(const std::byte* host, size_t bytes) {
  const Piece* piece = Known(host, bytes);
  if (piece == nullptr) {
    Update();  // peers open lanes during a call
    piece = Known(host, bytes);
  }
  return piece != nullptr && piece->registered ? piece : nullptr;
}

std::byte* DeviceSlots::Reach(const std::byte* host, size_t bytes) {
  const Piece* const piece = Find(host, bytes);
  if (piece == nullptr || piece->address == nullptr) return nullptr;
  return piece->address + (host - piece->begin);
}

}  // namespace inccl
