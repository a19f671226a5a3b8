// SPDX-License-Identifier: Apache-2.0
//
// Of the fake driver: memory that processes open of each other, and devices that reach each other.
// As strict as the strictest of drivers: what is open in a context is not opened there again, and
// no process opens memory of its own.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "fakes/cuda_driver/machine.h"

// NOLINTNEXTLINE(google-build-using-namespace): of this file's other half
using namespace inccl::test;

namespace {

constexpr uint64_t kMagic = 0x6661'6b65'2069'7063;
constexpr size_t kPage = 4096;

// What a handle holds.
struct Ticket {
  uint64_t magic = 0;
  int process = 0, file = -1;
  uint64_t offset = 0, bytes = 0;
  uint32_t id = 0;
  int device = 0;
};
static_assert(sizeof(Ticket) <= CU_IPC_HANDLE_SIZE);

void* Map(int file, int protection, size_t bytes, uint64_t from) {
  void* const memory = mmap(nullptr, bytes, protection, MAP_SHARED, file, static_cast<off_t>(from));
  return memory == MAP_FAILED ? nullptr : memory;
}

void Unmap(const Foreign& foreign) {
  if (foreign.seen != nullptr) munmap(foreign.seen, foreign.mapped);
  if (foreign.reached != nullptr) munmap(foreign.reached, foreign.mapped);
  if (foreign.notice_page != nullptr) munmap(foreign.notice_page, kPage);
}

// False: the exporter has gone, or freed it.
bool MapAll(const Ticket& ticket, Foreign* foreign) {
  const std::string path =
      "/proc/" + std::to_string(ticket.process) + "/fd/" + std::to_string(ticket.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return false;
  const uint64_t begin = ticket.offset / kPage * kPage;
  foreign->mapped = (ticket.offset + ticket.bytes - begin + kPage - 1) / kPage * kPage;
  foreign->seen = static_cast<std::byte*>(Map(file, PROT_NONE, foreign->mapped, begin));
  foreign->reached =
      static_cast<std::byte*>(Map(file, PROT_READ | PROT_WRITE, foreign->mapped, begin));
  const uint64_t notice = kDeviceBytes + ticket.offset / kUnit * sizeof(Notice);
  foreign->notice_page = Map(file, PROT_READ | PROT_WRITE, kPage, notice / kPage * kPage);
  close(file);
  if (foreign->seen == nullptr || foreign->reached == nullptr || foreign->notice_page == nullptr) {
    return false;
  }
  foreign->notice =
      reinterpret_cast<Notice*>(static_cast<std::byte*>(foreign->notice_page) + notice % kPage);
  return foreign->notice->id == ticket.id;
}

}  // namespace

FAKE cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  if (device < 0 || device >= Fake().count) return CUDA_ERROR_INVALID_DEVICE;
  std::memcpy(uuid->bytes, "a fake device  ", sizeof uuid->bytes);
  uuid->bytes[sizeof uuid->bytes - 1] = static_cast<char>('0' + device);
  return CUDA_SUCCESS;
}

FAKE cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  *can = device != peer && Fake().peers_reach ? 1 : 0;
  return CUDA_SUCCESS;
}

FAKE cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (flags != 0 || peer == Current()) return CUDA_ERROR_INVALID_VALUE;
  Machine& m = Fake();
  if (!m.peers_reach) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  const std::lock_guard lock(m.mutex);
  return Current()->peers.insert(peer).second ? CUDA_SUCCESS
                                              : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

FAKE cuMemGetAddressRange(CUdeviceptr* begin, size_t* bytes, CUdeviceptr address) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  Machine& m = Fake();
  const std::lock_guard lock(m.mutex);
  const auto piece = m.PieceAt(address);
  if (piece == m.pieces.end()) return CUDA_ERROR_NOT_FOUND;
  *begin = piece->first;
  *bytes = piece->second.bytes;
  return CUDA_SUCCESS;
}

// A file with what the range has now; that of a real driver would be the memory itself.
FAKE cuMemGetHandleForAddressRange(void* handle, CUdeviceptr begin, size_t bytes,
                                   CUmemRangeHandleType type, unsigned long long flags) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0 || begin % kPage != 0 ||
      bytes % kPage != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Machine& m = Fake();
  const std::lock_guard lock(m.mutex);
  const bool shown = m.DeviceOf(begin) >= 0 &&
                     std::none_of(m.pieces.begin(), m.pieces.end(), [&](const auto& piece) {
                       return piece.first < begin + bytes &&
                              begin < piece.first + piece.second.bytes && !piece.second.shareable;
                     });
  if (!shown) return CUDA_ERROR_NOT_SUPPORTED;
  const int file = memfd_create("fake-dma-buf", MFD_CLOEXEC);
  if (write(file, m.Reach(begin), bytes) != static_cast<ssize_t>(bytes)) std::abort();
  *static_cast<int*>(handle) = file;
  return CUDA_SUCCESS;
}

FAKE cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr memory) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = Unsafe(); result != CUDA_SUCCESS) return result;
  Machine& m = Fake();
  const std::lock_guard lock(m.mutex);
  const auto piece = m.pieces.find(memory);
  if (piece == m.pieces.end() || !piece->second.shareable) return CUDA_ERROR_INVALID_VALUE;
  const Arena& arena = m.arenas[piece->second.device];
  Ticket ticket;
  ticket.magic = kMagic;
  ticket.process = getpid();
  ticket.file = arena.file;
  ticket.offset = memory - reinterpret_cast<uintptr_t>(arena.seen);
  ticket.bytes = piece->second.bytes;
  ticket.id = piece->second.id;
  ticket.device = piece->second.device;
  std::memset(handle->reserved, 0, sizeof handle->reserved);
  std::memcpy(handle->reserved, &ticket, sizeof ticket);
  return CUDA_SUCCESS;
}

FAKE cuIpcOpenMemHandle(CUdeviceptr* memory, CUipcMemHandle handle, unsigned flags) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = Unsafe(); result != CUDA_SUCCESS) return result;
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  HoldIfAsked("cuIpcOpenMemHandle");
  Ticket ticket;
  std::memcpy(&ticket, handle.reserved, sizeof ticket);
  if (ticket.magic != kMagic) return CUDA_ERROR_INVALID_HANDLE;
  if (ticket.process == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  Machine& m = Fake();
  if (ticket.device != Current()->device && !m.peers_reach) {
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  const std::lock_guard lock(m.mutex);
  const auto exporter = static_cast<uint64_t>(ticket.process);
  const bool known = std::any_of(m.foreign.begin(), m.foreign.end(), [&](const auto& entry) {
    const Foreign& one = entry.second;
    return one.context == Current() && one.exporter == exporter && one.id == ticket.id;
  });
  if (known) return CUDA_ERROR_ALREADY_MAPPED;
  Foreign foreign;
  foreign.context = Current();
  foreign.device = ticket.device;
  foreign.exporter = exporter;
  foreign.id = ticket.id;
  if (!MapAll(ticket, &foreign)) {
    Unmap(foreign);
    return CUDA_ERROR_MAP_FAILED;
  }
  ++foreign.notice->opened;
  *memory = reinterpret_cast<CUdeviceptr>(foreign.seen + ticket.offset % kPage);
  m.foreign.emplace(*memory, foreign);
  return CUDA_SUCCESS;
}

FAKE cuIpcCloseMemHandle(CUdeviceptr memory) {
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (const CUresult result = Unsafe(); result != CUDA_SUCCESS) return result;
  WaitForContext();
  Machine& m = Fake();
  const std::lock_guard lock(m.mutex);
  const auto found = m.foreign.find(memory);
  if (found == m.foreign.end()) return CUDA_ERROR_INVALID_VALUE;
  if (found->second.context != Current()) return CUDA_ERROR_INVALID_CONTEXT;
  --found->second.notice->opened;
  Unmap(found->second);
  m.foreign.erase(found);
  return CUDA_SUCCESS;
}

// ---------------------------------------------------------------- for tests

// Whether what is allocated from now on can be shared, as that of cudaMallocAsync cannot.
extern "C" __attribute__((visibility("default"))) void fake_cuda_share(int can) {
  Fake().shareable = can != 0;
}

// Whether devices reach each other's memory.
extern "C" __attribute__((visibility("default"))) void fake_cuda_peers(int reach) {
  Fake().peers_reach = reach != 0;
}

// Whether what others have open may be freed; how often it was.
extern "C" __attribute__((visibility("default"))) int fake_cuda_free_opened(int may) {
  Fake().opened_may_be_freed = may != 0;
  return Fake().opened_were_freed;
}

// How much of other processes is open here.
extern "C" __attribute__((visibility("default"))) int fake_cuda_opened() {
  const std::lock_guard lock(Fake().mutex);
  return static_cast<int>(Fake().foreign.size());
}
