// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/ipc.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace inccl::cuda {
namespace {

constexpr uint32_t kMagic = 0x3143'4349;  // "ICC1"; changes with the format of a handle

Status CannotShare(std::string why) {
  return InvalidUsage("memory of this device cannot be shared: " + std::move(why));
}

std::string Text(const CUuuid& uuid) {
  std::string text = "GPU-";
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

std::byte* Pointer(CUdeviceptr data) {
  return reinterpret_cast<std::byte*>(data);  // NOLINT(performance-no-int-to-ptr): CUDA's type
}

}  // namespace

struct Ipc::Ticket {
  uint32_t magic = kMagic;
  uint32_t number = 0;  // of the allocation in its process
  uint64_t process = 0;
  CUuuid device{};
  CUipcMemHandle memory{};
};

Ipc::Ipc(const Driver* driver, ContextOf context_of)
    : driver_(*driver), context_of_(std::move(context_of)), pid_(getpid()) {
  static_assert(sizeof(Ticket) == DeviceShare::kHandleBytes);
  if (getrandom(&process_, sizeof process_, 0) != sizeof process_) process_ = 0;
}

Result<uint64_t> Ipc::BufferOf(CUdeviceptr data) const {
  unsigned long long buffer = 0;  // NOLINT(google-runtime-int): the driver's type
  Status status = Check(driver_.pointer_attribute(&buffer, CU_POINTER_ATTRIBUTE_BUFFER_ID, data),
                        "cuPointerGetAttribute");
  if (!status.ok()) return status;
  return uint64_t{buffer};
}

Result<CUuuid> Ipc::UuidOf(int device) const {
  CUdevice handle = 0;
  CUuuid uuid{};
  Status status = Check(driver_.device_get(&handle, device), "cuDeviceGet");
  if (status.ok()) status = Check(driver_.device_uuid(&uuid, handle), "cuDeviceGetUuid");
  if (!status.ok()) return status;
  return uuid;
}

Result<int> Ipc::DeviceWith(const CUuuid& uuid) const {
  for (int device = 0; device < devices_; ++device) {
    Result<CUuuid> one = UuidOf(device);
    if (!one.ok()) return one.status();
    if (std::memcmp(one->bytes, uuid.bytes, sizeof uuid.bytes) == 0) return device;
  }
  return InvalidUsage(fmt::format(
      "the memory to be opened is on device {}, which this process does not see", Text(uuid)));
}

Status Ipc::CheckReach(int device, int owner) const {
  if (device == owner) return Status::Ok();
  CUdevice from = 0, to = 0;
  int can = 0;
  Status status = Check(driver_.device_get(&from, device), "cuDeviceGet");
  if (status.ok()) status = Check(driver_.device_get(&to, owner), "cuDeviceGet");
  if (status.ok()) {
    status = Check(driver_.can_access_peer(&can, from, to), "cuDeviceCanAccessPeer");
  }
  if (!status.ok() || can != 0) return status;
  return InvalidUsage(fmt::format("device {} does not reach memory of device {}", device, owner));
}

uint32_t Ipc::NumberOf(const Shared& shared) {
  const MutexLock lock(&mutex_);
  const auto known = numbers_.find(shared.buffer);
  if (known != numbers_.end()) return known->second;
  shared_.push_back(shared);
  const auto number = static_cast<uint32_t>(shared_.size());
  numbers_.emplace(shared.buffer, number);
  return number;
}

Result<DeviceShare> Ipc::Share(int device, const void* memory, size_t bytes) {
  if (!driver_.HasIpc()) return CannotShare("libcuda.so.1 is without CUDA IPC");
  if (process_ == 0) return CannotShare("getrandom gives no number for this process");
  if (getpid() != pid_) return CannotShare("it is that of the process before a fork");
  if (device < 0) return InvalidArgument(fmt::format("{} is no memory of a device", memory));
  const Result<CUcontext> context = context_of_(device);
  if (!context.ok()) return context.status();
  const Within within(driver_, *context);
  if (!within.status().ok()) return within.status();
  CUdeviceptr begin = 0;
  size_t size = 0;
  Status status =
      Check(driver_.address_range(&begin, &size, Address(memory)), "cuMemGetAddressRange");
  if (!status.ok()) return status;
  const size_t offset = Address(memory) - begin;
  if (offset > size || bytes > size - offset) {
    return InvalidArgument(fmt::format("{} bytes at {} are not of one allocation, which has {}",
                                       bytes, memory, size - std::min(size, offset)));
  }
  int capable = 0;
  status = Check(
      driver_.pointer_attribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, begin),
      "cuPointerGetAttribute");
  if (!status.ok()) return status;
  if (capable == 0) return CannotShare("it is not of cudaMalloc or cuMemAlloc");
  const Result<uint64_t> buffer = BufferOf(begin);
  if (!buffer.ok()) return buffer.status();
  const Result<CUuuid> uuid = UuidOf(device);
  if (!uuid.ok()) return uuid.status();
  Ticket ticket;
  status = Check(driver_.ipc_get(&ticket.memory, begin), "cuIpcGetMemHandle");
  if (!status.ok()) return status;
  ticket.number = NumberOf({device, begin, *buffer});
  ticket.process = process_;
  ticket.device = *uuid;
  DeviceShare share;
  share.id = ticket.number;
  share.data = Pointer(begin);
  share.bytes = size;
  std::memcpy(share.handle.data(), &ticket, sizeof ticket);
  return share;
}

Result<std::byte*> Ipc::Open(int device, const DeviceShare::Handle& handle) {
  if (!driver_.HasIpc()) return CannotShare("libcuda.so.1 is without CUDA IPC");
  Ticket ticket;
  std::memcpy(&ticket, handle.data(), sizeof ticket);
  if (ticket.magic != kMagic) {
    return InvalidArgument("the handle of the memory to be opened is none, or of another version");
  }
  const Result<CUcontext> context = context_of_(device);
  if (!context.ok()) return context.status();
  const Within within(driver_, *context);
  if (!within.status().ok()) return within.status();
  const bool own = ticket.process == process_ && getpid() == pid_;
  return own ? OpenOwn(device, ticket.number) : OpenForeign(device, ticket);
}

// CUDA IPC does not open a process's own memory, so this returns its original address.
Result<std::byte*> Ipc::OpenOwn(int device, uint32_t number) {
  Shared shared;
  {
    const MutexLock lock(&mutex_);
    if (number == 0 || number > shared_.size()) {
      return InvalidArgument(fmt::format("the memory to be opened, number {}, is none", number));
    }
    shared = shared_[number - 1];
  }
  const Result<uint64_t> buffer = BufferOf(shared.data);
  if (!buffer.ok() || *buffer != shared.buffer) {
    return InvalidUsage(fmt::format("the memory to be opened, at {}, has been freed",
                                    static_cast<void*>(Pointer(shared.data))));
  }
  if (device == shared.device) return Pointer(shared.data);
  if (Status status = CheckReach(device, shared.device); !status.ok()) return status;
  const Result<CUcontext> owner = context_of_(shared.device);
  if (!owner.ok()) return owner.status();
  const CUresult result = driver_.enable_peer(*owner, 0);
  if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) {
    if (Status status = Check(result, "cuCtxEnablePeerAccess"); !status.ok()) return status;
  }
  return Pointer(shared.data);
}

// Some drivers refuse to open a handle twice, others count, so this opens each allocation only
// once. Opening may wait for work of the device, so only those who want the same memory wait for
// it.
Result<std::byte*> Ipc::OpenForeign(int device, const Ticket& ticket) {
  const MutexLock lock(&mutex_);
  const Key key{device, ticket.process, ticket.number};
  while (true) {
    const auto known = opened_.find(key);
    if (known == opened_.end()) break;
    if (known->second.users > 0) {
      ++known->second.users;
      return Pointer(known->second.data);
    }
    changed_.Wait(&mutex_);
  }
  opened_[key];  // without users: it is being opened
  Result<CUdeviceptr> data = [&] {
    const MutexUnlock unlocked(&mutex_);
    return OpenTicket(device, ticket);
  }();
  changed_.NotifyAll();
  if (!data.ok()) {
    opened_.erase(key);
    return data.status();
  }
  opened_[key] = {*data, 1};
  return Pointer(*data);
}

Result<CUdeviceptr> Ipc::OpenTicket(int device, const Ticket& ticket) const {
  const Result<int> owner = DeviceWith(ticket.device);
  if (!owner.ok()) return owner.status();
  if (Status status = CheckReach(device, *owner); !status.ok()) return status;
  CUdeviceptr data = 0;
  Status status = Check(driver_.ipc_open(&data, ticket.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                        "cuIpcOpenMemHandle");
  if (!status.ok()) return status;
  return data;
}

// Releases the mutex before it calls the driver: the driver may wait for work on the device, which
// may wait for an Open of another rank of this process.
void Ipc::Close(int device, std::byte* memory) {
  {
    const MutexLock lock(&mutex_);
    const auto found = std::find_if(opened_.begin(), opened_.end(), [&](const auto& one) {
      return std::get<0>(one.first) == device && one.second.data == Address(memory);
    });
    if (found == opened_.end() || --found->second.users > 0) return;  // not found: own memory
    opened_.erase(found);
  }
  const Result<CUcontext> context = context_of_(device);
  if (!context.ok()) return;
  const Within within(driver_, *context);
  if (within.status().ok()) driver_.ipc_close(Address(memory));
}

// CUDA wants whole pages, and allocates them: the rest of a page belongs to this process, too.
Result<DmaBuf> Ipc::DmaBufOf(int device, const void* memory, size_t bytes) const {
  if (driver_.range_handle == nullptr) return CannotShare("libcuda.so.1 makes no dma-bufs");
  if (device < 0) return InvalidArgument(fmt::format("{} is no memory of a device", memory));
  const Result<CUcontext> context = context_of_(device);
  if (!context.ok()) return context.status();
  const Within within(driver_, *context);
  if (!within.status().ok()) return within.status();
  const auto page = static_cast<CUdeviceptr>(sysconf(_SC_PAGESIZE));
  const CUdeviceptr begin = Address(memory) / page * page;
  const size_t size = (Address(memory) + bytes - begin + page - 1) / page * page;
  int file = -1;
  Status status =
      Check(driver_.range_handle(&file, begin, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
            "cuMemGetHandleForAddressRange");
  if (!status.ok()) return status;
  return DmaBuf{.file = UniqueFd(file), .offset = 0, .data = Pointer(begin), .bytes = size};
}

}  // namespace inccl::cuda
