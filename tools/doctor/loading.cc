// SPDX-License-Identifier: Apache-2.0
//
// Which libnccl.so.2 a program gets.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include "base/text.h"
#include "tools/doctor/checks.h"
#include "tools/doctor/elf.h"
#include "tools/doctor/run.h"

namespace inccl::tools {
namespace {

constexpr const char* kName = "libnccl.so.2";

std::string DirectoryOf(const std::string& own) {
  return own.empty() ? "lib/inccl-nccl" : std::filesystem::path(own).parent_path().string();
}

std::string Preload(const std::string& own) {
  return "LD_PRELOAD=" + (own.empty() ? "PREFIX/lib/inccl-nccl/libnccl.so.2" : own);
}

bool IsOurs(const std::string& path) {
  const std::optional<Elf> elf = ReadElf(path);
  return elf && elf->names_policy && elf->soname == kName;
}

// "libnccl.so.2" itself, or a file of another name that has been loaded under it.
bool NamesNccl(const std::string& path) {
  return std::filesystem::path(path).filename().string().rfind("libnccl.so", 0) == 0;
}

// What the loader says it would load, with this environment: paths.
std::vector<std::string> WouldLoad(const std::string& program, const Elf& elf) {
  std::string loader = elf.interpreter;
  if (loader.empty()) {
    const std::optional<Elf> self = ReadElf("/proc/self/exe");
    if (self) loader = self->interpreter;
  }
  std::vector<std::string> paths;
  std::istringstream lines(RunAndRead({loader, "--list", program}).text);
  for (std::string line; std::getline(lines, line);) {
    const size_t arrow = line.find(" => ");
    size_t begin = arrow == std::string::npos ? line.find_first_not_of(" \t") : arrow + 4;
    if (begin == std::string::npos) continue;
    const size_t end = line.rfind(" (0x");
    if (end != std::string::npos && end > begin) paths.push_back(line.substr(begin, end - begin));
  }
  return paths;
}

void AddLoaded(const std::string& path, const std::string& who, const std::string& own,
               Findings* findings) {
  if (IsOurs(path)) {
    findings->push_back({Verdict::kOk, fmt::format("{} {}, of inccl", who, path), ""});
    return;
  }
  findings->push_back({Verdict::kFix, fmt::format("{} {}, which is not inccl's", who, path),
                       "start it with " + Preload(own)});
}

}  // namespace

std::string FindOwnLibrary(const std::string& given) {
  if (!given.empty()) return given;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return "";
  for (const char* place :
       {"../lib/inccl-nccl", "../lib64/inccl-nccl", "../src/inccl-nccl",
        "../lib/x86_64-linux-gnu/inccl-nccl", "../lib/aarch64-linux-gnu/inccl-nccl"}) {
    const std::filesystem::path path = (self.parent_path() / place / kName).lexically_normal();
    if (std::filesystem::exists(path, error)) return path.string();
  }
  return "";
}

void CheckProgram(const std::string& program, const std::string& own, Findings* findings) {
  const std::optional<Elf> elf = ReadElf(program);
  if (!elf) {
    findings->push_back(
        {Verdict::kFix, program + " is no 64-bit ELF file: a script, or not readable",
         "name the library that calls NCCL (of PyTorch: torch/lib/libtorch_cuda.so), or --pid of "
         "the running program"});
    return;
  }
  if (elf->defined.count("ncclAllReduce") != 0 && elf->soname != kName) {
    findings->push_back({Verdict::kFix, program + " contains NCCL (ncclAllReduce is defined in it)",
                         "build it against a shared libnccl; nothing replaces the one inside"});
    return;
  }
  for (const std::string& path : WouldLoad(program, *elf)) {
    if (!NamesNccl(path)) continue;
    AddLoaded(path, program + " would load", own, findings);
    return;
  }
  if (elf->Needs(kName)) {
    findings->push_back({Verdict::kFix, program + " needs libnccl.so.2, and the loader finds none",
                         "start it with LD_LIBRARY_PATH=" + DirectoryOf(own)});
  } else if (elf->opens_nccl) {
    findings->push_back(
        {Verdict::kNote, program + " is not linked against libnccl.so.2 and may open it by name",
         Preload(own) + " reaches \"libnccl.so.2\", LD_LIBRARY_PATH=" + DirectoryOf(own) +
             " also \"libnccl.so\", neither a path: see --pid when it runs"});
  } else {
    findings->push_back({Verdict::kNote, program + " does not need libnccl.so.2 itself",
                         "a library that it opens may: see --pid when it runs"});
  }
}

void CheckProcess(int pid, const std::string& own, Findings* findings) {
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  std::set<std::string> nccl, inccl, cuda;
  bool readable = false;
  for (std::string line; std::getline(maps, line);) {
    readable = true;
    const size_t slash = line.find('/');
    if (slash == std::string::npos) continue;
    const std::string path = line.substr(slash);
    const std::string name = std::filesystem::path(path).filename().string();
    if (NamesNccl(path)) nccl.insert(path);
    if (name.rfind("libinccl.so", 0) == 0) inccl.insert(path);
    if (name.rfind("libcuda.so", 0) == 0) cuda.insert(path);
  }
  const std::string who = fmt::format("process {}", pid);
  if (!readable) {
    findings->push_back({Verdict::kFix, who + ": its memory map cannot be read",
                         "is it running, and of this user? else run as root"});
    return;
  }
  for (const std::string& path : nccl) {
    AddLoaded(Escaped(path), who + " has loaded", own, findings);
  }
  if (nccl.empty()) {
    findings->push_back({Verdict::kNote, who + " has loaded no libnccl.so.2",
                         "programs may open it at the first collective: ask again then; or NCCL is "
                         "linked into it: see the program's file"});
    return;
  }
  if (inccl.empty()) {
    findings->push_back({Verdict::kNote,
                         who + " has not called NCCL so far: libinccl is not loaded",
                         "ask again after the first communicator"});
  } else {
    findings->push_back({Verdict::kOk, who + ": calls run on " + Escaped(*inccl.begin()), ""});
  }
  findings->push_back({Verdict::kOk,
                       who + (cuda.empty() ? " has no CUDA driver loaded: buffers are host memory"
                                           : " has loaded " + Escaped(*cuda.begin())),
                       ""});
}

}  // namespace inccl::tools
