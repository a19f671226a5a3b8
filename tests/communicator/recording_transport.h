// SPDX-License-Identifier: Apache-2.0
//
// A transport without lanes that notes which memory it is to export.
#ifndef INCCL_TESTS_COMMUNICATOR_RECORDING_TRANSPORT_H_
#define INCCL_TESTS_COMMUNICATOR_RECORDING_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace inccl::test {

class RecordingTransport final : public Transport, private Exports {
 public:
  struct Registered {
    const void* data;
    size_t bytes;
    Registration how;
  };

  Result<MemoryHandle> Register(const void* data, size_t bytes, const Registration& how) override {
    if (!refuses_register.empty()) return SystemError(refuses_register);
    const auto* const begin = static_cast<const std::byte*>(data);
    registered.push_back({data, bytes, how});
    MemoryHandle handle;
    handle.region = ++regions_;
    handle.on_device = how.on_device;
    handle.writable = how.access == Access::kReadWrite;
    handle.begin = begin;
    handle.end = begin + bytes;
    exported.insert(handle.region);
    return handle;
  }
  void Deregister(const MemoryHandle& memory) override {
    if (exported.erase(memory.region) == 0) ++unknown;
  }
  Status CanRegister(const void* /*data*/, size_t /*bytes*/, bool /*on_device*/) const override {
    return can_register ? Status::Ok() : SystemError("not this memory");
  }
  Status RevokeAccess(const MemoryHandle& memory) override {
    revoked.push_back(memory.region);
    return Status::Ok();
  }

  Exports* exports() override { return this; }
  Caps caps() const override { return {.name = "recording"}; }
  LaneCaps CapsFor(int, std::span<const int>) const override { return {}; }
  Result<std::unique_ptr<SendLane>> OpenSend(const LaneSpec&) override {
    return InternalError("no lanes");
  }
  Result<std::unique_ptr<RecvLane>> OpenRecv(const LaneSpec&) override {
    return InternalError("no lanes");
  }
  Result<int> Progress(Time) override { return 0; }
  WakeupEvent* wakeup_event() override { return nullptr; }
  void Quiesce(Time) override {}
  uint64_t memory_bytes() const override { return 0; }

  std::string refuses_register;  // not empty: why
  bool can_register = true;
  std::vector<Registered> registered;  // in order
  std::set<uint32_t> exported;         // regions
  std::vector<uint32_t> revoked;
  int unknown = 0;  // Deregister of no such region

 private:
  uint32_t regions_ = 0;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_COMMUNICATOR_RECORDING_TRANSPORT_H_
