// SPDX-License-Identifier: Apache-2.0
//
// The machine, and the binary interface.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <cstdlib>
#include <optional>

#include "bootstrap/interfaces.h"
#include "tools/doctor/abi.h"
#include "tools/doctor/checks.h"

namespace inccl::tools {
namespace {

constexpr uint64_t kMiB = 1 << 20;

void AddComparison(const AbiComparison& comparison, const std::string& what, Findings* findings) {
  if (!comparison.error.empty()) {
    findings->push_back({Verdict::kFix, what + ": " + comparison.error, "give another file"});
  } else if (comparison.different.empty()) {
    findings->push_back(
        {Verdict::kOk, fmt::format("{}: {} compared, all equal", what, comparison.compared), ""});
  }
  for (const std::string& text : comparison.different) {
    findings->push_back({Verdict::kFix, what + ": " + text,
                         "programs built for that version may fail; use an inccl that knows it"});
  }
}

void CheckSharedMemory(Findings* findings) {
  struct statvfs status {};
  if (statvfs("/dev/shm", &status) != 0) {
    findings->push_back({Verdict::kOk, "/dev/shm: none; inccl does not need it", ""});
    return;
  }
  findings->push_back(
      {Verdict::kOk,
       fmt::format(
           "/dev/shm: {} of {} MiB free; inccl does not use it (its memory is anonymous and "
           "counts against the container's memory)",
           status.f_bavail * status.f_frsize / kMiB, status.f_blocks * status.f_frsize / kMiB),
       ""});
}

void CheckLockedMemory(Findings* findings) {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return;
  if (limit.rlim_cur == RLIM_INFINITY) {
    findings->push_back({Verdict::kOk, "memlock: unlimited", ""});
    return;
  }
  findings->push_back(
      {Verdict::kNote,
       fmt::format("memlock: {} KiB may be locked: too little for RDMA, enough for everything else",
                   limit.rlim_cur / 1024),
       "for INCCL_TRANSPORT with verbs: ulimit -l unlimited, or docker's --ulimit memlock=-1"});
}

std::string AddressText(const UniqueIdAddress& address) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(address.family == 4 ? AF_INET : AF_INET6, address.address.data(), text, sizeof text);
  return text;
}

void CheckNetwork(Findings* findings) {
  const char* name = "INCCL_SOCKET_IFNAME";
  const char* pattern = std::getenv(name);
  if (pattern == nullptr || *pattern == '\0') {
    name = "NCCL_SOCKET_IFNAME";
    pattern = std::getenv(name);
  }
  const std::string given = pattern == nullptr ? "" : pattern;
  const std::string by = given.empty() ? "" : fmt::format(" ({}={})", name, given);
  Result<std::vector<UniqueIdAddress>> addresses = bootstrap::ChooseAddresses(given);
  if (!addresses.ok()) {
    findings->push_back({Verdict::kFix, "network: " + addresses.status().message(),
                         fmt::format("correct {}, or unset it", name)});
    return;
  }
  const std::string address = addresses->empty() ? "none" : AddressText(addresses->front());
  if (addresses->empty() || bootstrap::IsLoopback(addresses->front())) {
    findings->push_back({Verdict::kNote,
                         fmt::format("network: {}{}: ranks of this machine only", address, by),
                         "for several hosts: bring an interface up, or name it in "
                         "INCCL_SOCKET_IFNAME"});
    return;
  }
  findings->push_back({Verdict::kOk, fmt::format("network: {}{}", address, by), ""});
}

void CheckCuda(Findings* findings) {
  if (dlopen("libcuda.so.1", RTLD_LAZY) == nullptr) {
    findings->push_back(
        {Verdict::kNote, "CUDA: no driver (libcuda.so.1): calls use host memory",
         "on a machine with a GPU, install NVIDIA's driver; in a container, pass it "
         "in (--gpus all)"});
    return;
  }
  findings->push_back({Verdict::kOk, "CUDA: the driver (libcuda.so.1) is there", ""});
  bool runtime = false;
  for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so"}) {
    runtime = runtime || dlopen(name, RTLD_LAZY) != nullptr;
  }
  if (!runtime) {
    findings->push_back({Verdict::kNote, "CUDA: no shared runtime (libcudart.so)",
                         "none is needed where programs contain it or bring it, as PyTorch does"});
  }
  if (dlopen("libinccl_cuda.so.0", RTLD_LAZY) == nullptr) {
    findings->push_back(
        {Verdict::kNote, "CUDA: libinccl_cuda.so.0 is not in the loader's path",
         "it must lie beside libinccl.so.0 or in LD_LIBRARY_PATH, else creation of a "
         "communicator fails in processes that use devices"});
  }
}

}  // namespace

void CheckAbi(const std::string& own, const std::string& library, const std::string& header,
              Findings* findings) {
  if (!library.empty()) {
    const std::optional<Elf> ours = ReadElf(own), other = ReadElf(library);
    if (!ours || !other) {
      findings->push_back({Verdict::kFix, "names: " + (ours ? library : own) + " is no library",
                           "give another file by --nccl or --library"});
    } else {
      AddComparison(CompareNames(*ours, *other), "names of " + library, findings);
    }
  }
  if (header.empty()) return;
  const char* compiler = std::getenv("CC");
  AddComparison(CompareHeader(header, compiler == nullptr ? "cc" : compiler),
                "fields and numbers of " + header, findings);
}

void CheckMachine(Findings* findings) {
  CheckSharedMemory(findings);
  CheckLockedMemory(findings);
  CheckNetwork(findings);
  CheckCuda(findings);
}

}  // namespace inccl::tools
