// SPDX-License-Identifier: Apache-2.0
#include "transport/verbs/verbs_device.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "device/runtime.h"

namespace inccl::verbs {
namespace {

constexpr const char* kName = "libibverbs.so.1";

template <typename Function>
Function Find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

Result<const Library*> LoadFrom(const char* name) {
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return InvalidUsage(
        fmt::format("libibverbs is not installed: {}", why != nullptr ? why : name));
  }
  auto made = std::make_unique<Library>();
  Library& functions = *made;
#define INCCL_VERBS_FIND(function)                                                  \
  functions.function = Find<decltype(&::function)>(library, #function);             \
  if (functions.function == nullptr) {                                              \
    return SystemError(                                                             \
        fmt::format("libibverbs is too old: no {} in {}; rdma-core 32 or later is " \
                    "needed",                                                       \
                    #function, name));                                              \
  }
  INCCL_VERBS_FUNCTIONS(INCCL_VERBS_FIND)
#undef INCCL_VERBS_FIND
  functions.reg_dmabuf_mr = Find<decltype(functions.reg_dmabuf_mr)>(library, "ibv_reg_dmabuf_mr");
  return static_cast<const Library*>(made.release());
}

}  // namespace

Result<const Library*> Load() {
  if (const char* const stand_in = secure_getenv("INCCL_TEST_IBVERBS"); stand_in != nullptr) {
    static const auto* const loaded = new Result<const Library*>(LoadFrom(stand_in));
    return *loaded;
  }
  static const auto* const loaded = new Result<const Library*>(LoadFrom(kName));
  return *loaded;
}

}  // namespace inccl::verbs

namespace inccl::verbs {
namespace {

constexpr size_t kPage = 4096;

const char* StateName(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN: return "DOWN";
    case IBV_PORT_INIT: return "INIT";
    case IBV_PORT_ARMED: return "ARMED";
    case IBV_PORT_ACTIVE: return "ACTIVE";
    case IBV_PORT_ACTIVE_DEFER: return "ACTIVE_DEFER";
    case IBV_PORT_NOP: break;
  }
  return "unknown";
}

double Gbps(const ibv_port_attr& port) {
  const double lanes = port.active_width == 16  ? 2
                       : port.active_width == 2 ? 4
                       : port.active_width == 4 ? 8
                       : port.active_width == 8 ? 12
                                                : port.active_width;
  switch (port.active_speed) {
    case 1: return lanes * 2.5;
    case 2: return lanes * 5;
    case 4:
    case 8: return lanes * 10;
    case 16: return lanes * 14;
    case 32: return lanes * 25;
    case 64: return lanes * 50;
    case 128: return lanes * 100;
    default: return 0;
  }
}

int NodeOf(const ibv_device& device) {
  std::ifstream file(std::string(&device.ibdev_path[0]) + "/device/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

int MtuBytes(ibv_mtu mtu) { return 128 << static_cast<int>(mtu); }

// What verbs.h's macro of this name does, with the function that was loaded.
int QueryPort(const Library& ibv, ibv_context* context, uint8_t port, ibv_port_attr* attributes) {
  *attributes = {};
  return (ibv.ibv_query_port)(context, port, reinterpret_cast<_compat_ibv_port_attr*>(attributes));
}

Gid ToGid(const ibv_gid& gid) {
  Gid bytes;
  static_assert(sizeof gid.raw == sizeof bytes);
  std::memcpy(bytes.data(), gid.raw, sizeof bytes);
  return bytes;
}

// How good a GID is for peers of other hosts: of RoCE v2 on Ethernet, not link-local; IPv4 before
// IPv6. 0: they cannot use it.
int Rank(const ibv_gid_entry& entry, bool ethernet) {
  const Gid gid = ToGid(entry.gid);
  if (gid == Gid{}) return 0;
  if (!ethernet) return 1;  // the first one: the port's own
  if (entry.gid_type != IBV_GID_TYPE_ROCE_V2 || IsLinkLocal(gid)) return 0;
  return IsIpv4Mapped(gid) ? 2 : 1;
}

// A driver that knows dma-bufs reports that this descriptor is none.
std::string WhyNoDmaBufs(const Library& ibv, ibv_pd* pd) {
  if (ibv.reg_dmabuf_mr == nullptr) {
    return "libibverbs has no ibv_reg_dmabuf_mr (rdma-core 34 or later)";
  }
  errno = 0;
  const MemoryRegion none((ibv.reg_dmabuf_mr)(pd, 0, 0, 0, -1, 0), ibv.ibv_dereg_mr);
  if (errno != EOPNOTSUPP && errno != EPROTONOSUPPORT) return "";
  return fmt::format("its driver registers no dma-bufs: {}", std::strerror(errno));
}

class DeviceList {
 public:
  explicit DeviceList(const Library* ibv) : ibv_(ibv) {
    list_ = (ibv_->ibv_get_device_list)(&count_);
  }
  ~DeviceList() {
    if (list_ != nullptr) (ibv_->ibv_free_device_list)(list_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  ibv_device** begin() const { return list_; }
  ibv_device** end() const { return list_ == nullptr ? nullptr : list_ + count_; }

 private:
  const Library* const ibv_;
  ibv_device** list_ = nullptr;
  int count_ = 0;
};

std::string LockedMemoryLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "no limit";
  return fmt::format("{} KiB", limit.rlim_cur >> 10);
}

}  // namespace

Result<std::vector<std::unique_ptr<Device>>> Device::All(const VerbsPortOptions& options) {
  Result<const Library*> loaded = Load();
  if (!loaded.ok()) return loaded.status();
  const Library* const ibv = *loaded;
  std::vector<std::unique_ptr<Device>> ports;
  for (ibv_device* const device : DeviceList(ibv)) {
    int last = 1;
    for (int number = 1; number <= last; ++number) {
      std::unique_ptr<Device> port(
          new Device(ibv, Context((ibv->ibv_open_device)(device), ibv->ibv_close_device)));
      port->info_.device = (ibv->ibv_get_device_name)(device);
      if (port->context_ == nullptr ||
          (ibv->ibv_query_device)(port->context(), &port->limits_) != 0) {
        port->info_.why_not = fmt::format("the device cannot be opened: {}", std::strerror(errno));
      } else {
        last = port->limits_.phys_port_cnt;
        port->info_.port = number;
        port->Inspect(options);
      }
      ports.push_back(std::move(port));
    }
  }
  return ports;
}

void Device::Inspect(const VerbsPortOptions& options) {
  pd_.reset((ibv_->ibv_alloc_pd)(context()));
  const int no_pd = errno;
  if (pd_ != nullptr) info_.why_no_dma_bufs = WhyNoDmaBufs(*ibv_, pd());
  if (QueryPort(*ibv_, context(), port(), &attributes_) != 0) {
    info_.why_not = "its state cannot be read";
    return;
  }
  info_.state = StateName(attributes_.state);
  info_.ethernet = attributes_.link_layer == IBV_LINK_LAYER_ETHERNET;
  info_.mtu = MtuBytes(attributes_.active_mtu);
  info_.gbps = Gbps(attributes_);
  info_.node = NodeOf(*context()->device);
  ChooseGid(options.gid_index);
  if (!Admits(options.hca, info_.device, info_.port)) {
    info_.why_not = fmt::format("excluded by INCCL_IB_HCA={}", options.hca);
  } else if (attributes_.state != IBV_PORT_ACTIVE) {
    info_.why_not = fmt::format("the port is {}", info_.state);
  } else if (info_.gid_index < 0 && options.gid_index >= 0) {
    info_.why_not = fmt::format("it has no GID {} (INCCL_IB_GID_INDEX)", options.gid_index);
  } else if (info_.gid_index < 0 && info_.ethernet) {
    info_.why_not = "it has no GID of RoCE v2; its interface needs an IP address";
  } else if (pd_ == nullptr) {
    info_.why_not = fmt::format("no protection domain: {}", std::strerror(no_pd));
  }
}

// `wanted`: -1, or the only one that will do.
void Device::ChooseGid(int wanted) {
  int best = 0;
  for (int index = 0; index < attributes_.gid_tbl_len; ++index) {
    if (wanted >= 0 && index != wanted) continue;
    ibv_gid_entry entry{};
    if ((ibv_->_ibv_query_gid_ex)(context(), port(), static_cast<uint32_t>(index), &entry, 0,
                                  sizeof entry) != 0) {
      continue;
    }
    const int rank = wanted >= 0 ? 1 : Rank(entry, ethernet());
    if (rank <= best) continue;
    best = rank;
    gid_ = ToGid(entry.gid);
    info_.gid_index = index;
    info_.gid = ToText(gid_);
  }
}

Result<std::vector<std::unique_ptr<Device>>> Device::Open(const VerbsPortOptions& options,
                                                          size_t most) {
  Result<std::vector<std::unique_ptr<Device>>> all = All(options);
  if (!all.ok()) return all;
  std::vector<std::unique_ptr<Device>>& devices = *all;
  if (devices.empty()) return InvalidUsage("this machine has no RDMA device");
  std::string reasons;
  std::erase_if(devices, [&](const auto& device) {
    if (device->info_.why_not.empty()) return false;
    reasons +=
        fmt::format("{}{}: {}", reasons.empty() ? "" : ", ", device->name(), device->info_.why_not);
    return true;
  });
  if (devices.empty()) return SystemError(fmt::format("no usable port: {}", reasons));
  const auto is_near = [&](const auto& device) {
    return std::find(options.nodes.begin(), options.nodes.end(), device->info_.node) !=
           options.nodes.end();
  };
  if (std::any_of(devices.begin(), devices.end(), is_near)) {
    std::erase_if(devices, [&](const auto& device) { return !is_near(device); });
  }
  const auto fastest =
      std::max_element(devices.begin(), devices.end(),
                       [](const auto& a, const auto& b) { return a->info_.gbps < b->info_.gbps; });
  const double gbps = (*fastest)->info_.gbps;
  const bool ethernet = (*fastest)->ethernet();
  std::erase_if(devices, [&](const auto& device) {
    return device->info_.gbps < gbps || device->ethernet() != ethernet;
  });
  if (devices.size() > most) devices.resize(most);
  return all;
}

Result<RegisteredMemory> Device::Allocate(size_t bytes, Writer writer) const {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return SystemErrorErrno(fmt::format("mmap of {} bytes", bytes), errno);
  RegisteredMemory made{.memory = Mapping(data, bytes)};
  // Else a child could make the kernel move this process's pages away from the device's.
  (void)madvise(data, bytes, MADV_DONTFORK);
  Result<MemoryRegion> region = Register(data, bytes, writer);
  if (!region.ok()) return region.status();
  made.region = *std::move(region);
  return made;
}

Result<MemoryRegion> Device::Register(void* data, size_t bytes, Writer writer) const {
  const int access =
      writer == Writer::kPeers ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0;
  MemoryRegion region((ibv_->ibv_reg_mr)(pd_.get(), data, bytes, access), ibv_->ibv_dereg_mr);
  if (region != nullptr) return region;
  const int error = errno;
  if (error != ENOMEM && error != EAGAIN && error != EPERM) {
    return SystemErrorErrno(fmt::format("{}: registration of {} bytes", name(), bytes), error);
  }
  return SystemError(fmt::format(
      "{}: registration of {} KiB: {}; the process may lock {} of memory (RLIMIT_MEMLOCK): raise "
      "it by \"ulimit -l unlimited\", LimitMEMLOCK=infinity of a systemd unit or --ulimit "
      "memlock=-1 of a container",
      name(), bytes >> 10, std::strerror(error), LockedMemoryLimit()));
}

Result<MemoryRegion> Device::Register(const DmaBuf& buffer) const {
  MemoryRegion region(
      (ibv_->reg_dmabuf_mr)(pd_.get(), buffer.offset, buffer.bytes,
                            reinterpret_cast<uint64_t>(buffer.data), buffer.file.get(), 0),
      ibv_->ibv_dereg_mr);
  if (region != nullptr) return region;
  return SystemErrorErrno(
      fmt::format("{}: registration of {} bytes of a GPU", name(), buffer.bytes), errno);
}

std::string Device::PortTrouble() const {
  ibv_port_attr now{};
  if (QueryPort(*ibv_, context(), port(), &now) != 0) {
    return fmt::format("the device {} is gone", name());
  }
  return now.state == IBV_PORT_ACTIVE ? "" : fmt::format("{} is {}", name(), StateName(now.state));
}

std::string Device::name() const { return fmt::format("{}:{}", info_.device, info_.port); }

}  // namespace inccl::verbs

namespace inccl {

Result<std::vector<VerbsPort>> ListVerbsPorts(const VerbsPortOptions& options) {
  const Result<std::vector<std::unique_ptr<verbs::Device>>> devices = verbs::Device::All(options);
  if (!devices.ok()) return devices.status();
  std::vector<VerbsPort> ports;
  for (const std::unique_ptr<verbs::Device>& device : *devices) ports.push_back(device->info());
  return ports;
}

}  // namespace inccl

namespace inccl::verbs {
namespace {

constexpr uint32_t kRegion = uint32_t{1} << 31;  // no id of a transport that peers import from
// Identities of memory that is not of ccl_mem_alloc, apart from the generations of that.
constexpr uint64_t kOwnMemory = uint64_t{1} << 62;

const Status& Refused() {
  thread_local const Status status =
      InvalidArgument("the device could not register this memory before, or it is not registered");
  return status;
}

}  // namespace

CallerMemory::CallerMemory(std::vector<const Device*> devices, Status gpus)
    : devices_(std::move(devices)), gpus_(std::move(gpus)), last_own_(kOwnMemory) {
  for (const Device* const device : devices_) {
    const std::string& why_not = device->info().why_no_dma_bufs;
    if (gpus_.ok() && !why_not.empty()) {
      gpus_ = InvalidUsage(fmt::format("{}: {}", device->name(), why_not));
    }
  }
  HostAllocator::Instance().Observe(this);
}

CallerMemory::~CallerMemory() { HostAllocator::Instance().Forget(this); }

Status CallerMemory::CanRegister(const void* data, size_t bytes, bool on_device) const {
  if (on_device && !gpus_.ok()) return gpus_;
  return data != nullptr && bytes > 0 ? Status::Ok() : InvalidArgument("no memory");
}

Result<CallerMemory::Entry*> CallerMemory::Make(const Region& region, bool keep) {
  const auto found = [](const Entry& entry) { return entry.keepers == 0; };
  const auto count = static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(), found));
  if (keep && entries_.size() - count >= kMostKept) {
    return SystemError(fmt::format("{} regions are registered", kMostKept));
  }
  if (!keep && count >= kMostFound) {
    entries_.erase(
        std::min_element(entries_.begin(), entries_.end(), [&](const Entry& a, const Entry& b) {
          return std::pair(!found(a), a.used) < std::pair(!found(b), b.used);
        }));
  }
  Entry entry{.memory = region.generation,
              .begin = region.data,
              .end = region.data + region.bytes,
              .used = ++uses_};
  DmaBuf buffer;
  if (region.on_device) {
    Result<DmaBuf> made = CurrentDevice()->DmaBufOf(region.data, region.bytes);
    if (!made.ok()) return made.status();
    buffer = *std::move(made);
  }
  for (const Device* const device : devices_) {
    Result<MemoryRegion> made =
        region.on_device ? device->Register(buffer)
                         : device->Register(region.data, region.bytes, Writer::kThisRank);
    if (!made.ok()) return made.status();
    entry.regions.push_back(*std::move(made));
  }
  entries_.push_back(std::move(entry));
  return &entries_.back();
}

// Memory of ccl_mem_alloc is registered whole and known by its generation; other memory by its
// address, and registered anew by each that keeps it.
Result<MemoryHandle> CallerMemory::Register(const void* data, size_t bytes,
                                            const Registration& how) {
  if (how.on_device && !gpus_.ok()) return gpus_;
  // Before the lock, because ccl_mem_free holds the allocator's when it calls OnFree.
  Region region;
  if (how.on_device) {
    region = FindOnDevice(data, bytes);
  } else if (Result<Region> found = FindRegion(data, bytes, false); found.ok()) {
    region = *found;
  }
  const bool own = region.generation == 0;
  const auto* const begin = static_cast<const std::byte*>(data);
  const MutexLock lock(&mutex_);
  // Slices of an earlier call were the last to use these.
  std::erase_if(entries_, [](const Entry& entry) { return entry.replaced; });
  const auto found =
      own && how.keep
          ? entries_.end()
          : std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
              return own ? entry.Covers(begin, bytes) : entry.memory == region.generation;
            });
  Entry* entry = found == entries_.end() ? nullptr : &*found;
  if (entry == nullptr) {
    if (own ? !how.keep : region.generation == refused_) return Refused();
    if (own) {
      region = {.generation = ++last_own_,
                .data = const_cast<std::byte*>(begin),
                .bytes = bytes,
                .on_device = how.on_device};
    }
    Result<Entry*> made = Make(region, how.keep);
    if (!made.ok()) {
      refused_ = region.generation;
      return made.status();
    }
    entry = *made;
  }
  entry->used = ++uses_;
  if (how.keep) ++entry->keepers;
  return MemoryHandle{.region = kRegion,
                      .offset = static_cast<uint64_t>(begin - entry->begin),
                      .begin = begin,
                      .end = begin + bytes,
                      .memory = entry->memory};
}

void CallerMemory::Deregister(const MemoryHandle& memory) {
  const MutexLock lock(&mutex_);
  std::erase_if(entries_, [&](Entry& entry) {
    return entry.memory == memory.memory && entry.keepers > 0 && --entry.keepers == 0;
  });
}

void CallerMemory::Clear() {
  const MutexLock lock(&mutex_);
  entries_.clear();
}

const CallerMemory::Entry* CallerMemory::Find(const std::byte* data, size_t bytes) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.Covers(data, bytes); });
  return found == entries_.end() ? nullptr : &*found;
}

bool CallerMemory::Holds(const std::byte* data, size_t bytes) const {
  const MutexLock lock(&mutex_);
  return Find(data, bytes) != nullptr;
}

std::string CallerMemory::RegistrationOf(const std::byte* data, size_t bytes) const {
  const MutexLock lock(&mutex_);
  const Entry* const entry = Find(data, bytes);
  if (entry == nullptr) return "";
  return fmt::format("{} to {}", fmt::ptr(entry->begin), fmt::ptr(entry->end));
}

void CallerMemory::OnReplace(const std::byte* begin, const std::byte* end) {
  const MutexLock lock(&mutex_);
  for (Entry& entry : entries_) {
    entry.replaced = entry.replaced || (entry.begin < end && begin < entry.end);
  }
}

void CallerMemory::OnFree(const std::byte* begin, const std::byte* end) {
  const MutexLock lock(&mutex_);
  std::erase_if(entries_,
                [&](const Entry& entry) { return entry.begin < end && begin < entry.end; });
}

}  // namespace inccl::verbs
