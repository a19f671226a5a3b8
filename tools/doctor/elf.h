// SPDX-License-Identifier: Apache-2.0
//
// What the loader reads in a program or library: 64-bit ELF files of this machine's byte order.
#ifndef INCCL_TOOLS_DOCTOR_ELF_H_
#define INCCL_TOOLS_DOCTOR_ELF_H_

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace inccl::tools {

struct Elf {
  std::string interpreter;  // "" of a library
  std::string soname, rpath, runpath;
  std::vector<std::string> needed;
  std::set<std::string> defined;   // dynamic symbols, and those of a symbol table that is there
  std::set<std::string> exported;  // dynamic symbols
  bool names_policy = false;       // contains "INCCL_NCCL_POLICY": inccl's libnccl.so.2
  bool opens_nccl = false;         // contains "libnccl.so": may open it by name

  bool Needs(const std::string& library) const;
};

// nullopt: not such a file, damaged, or not readable.
std::optional<Elf> ReadElf(const std::string& path);

}  // namespace inccl::tools

#endif  // INCCL_TOOLS_DOCTOR_ELF_H_
