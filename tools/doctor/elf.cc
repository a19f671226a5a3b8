// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/elf.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace inccl::tools {
namespace {

// A mapped file; every access is checked against its end.
class File {
 public:
  explicit File(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    struct stat status {};
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
      void* const memory =
          mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
      if (memory != MAP_FAILED) {
        bytes_ = {static_cast<const char*>(memory), static_cast<size_t>(status.st_size)};
      }
    }
    close(fd);
  }
  ~File() {
    if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::string_view bytes() const { return bytes_; }
  template <typename T>
  bool Read(uint64_t at, T* value) const {
    if (at > bytes_.size() || bytes_.size() - at < sizeof(T)) return false;
    std::memcpy(value, bytes_.data() + at, sizeof(T));
    return true;
  }
  std::string Text(uint64_t at) const {
    if (at >= bytes_.size()) return "";
    return {bytes_.data() + at, strnlen(bytes_.data() + at, bytes_.size() - at)};
  }

 private:
  std::string_view bytes_;
};

bool Section(const File& file, const Elf64_Ehdr& header, uint64_t index, Elf64_Shdr* section) {
  return index < header.e_shnum && file.Read(header.e_shoff + index * sizeof *section, section);
}

void ReadSymbols(const File& file, const Elf64_Shdr& table, const Elf64_Shdr& names, Elf* elf) {
  for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= table.sh_size; at += sizeof(Elf64_Sym)) {
    Elf64_Sym symbol{};
    if (!file.Read(table.sh_offset + at, &symbol)) return;
    const unsigned bind = ELF64_ST_BIND(symbol.st_info);
    if (symbol.st_shndx == SHN_UNDEF || (bind != STB_GLOBAL && bind != STB_WEAK)) continue;
    const std::string name = file.Text(names.sh_offset + symbol.st_name);
    elf->defined.insert(name);
    if (table.sh_type == SHT_DYNSYM) elf->exported.insert(name);
  }
}

void ReadDynamic(const File& file, const Elf64_Shdr& section, const Elf64_Shdr& names, Elf* elf) {
  for (uint64_t at = 0; at + sizeof(Elf64_Dyn) <= section.sh_size; at += sizeof(Elf64_Dyn)) {
    Elf64_Dyn entry{};
    if (!file.Read(section.sh_offset + at, &entry) || entry.d_tag == DT_NULL) return;
    const std::string text = file.Text(names.sh_offset + entry.d_un.d_val);
    if (entry.d_tag == DT_NEEDED) elf->needed.push_back(text);
    if (entry.d_tag == DT_SONAME) elf->soname = text;
    if (entry.d_tag == DT_RPATH) elf->rpath = text;
    if (entry.d_tag == DT_RUNPATH) elf->runpath = text;
  }
}

}  // namespace

bool Elf::Needs(const std::string& library) const {
  return std::find(needed.begin(), needed.end(), library) != needed.end();
}

std::optional<Elf> ReadElf(const std::string& path) {
  const File file(path);
  Elf64_Ehdr header{};
  if (!file.Read(0, &header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) {
    return std::nullopt;
  }
  Elf elf;
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    if (!file.Read(header.e_phoff + i * sizeof segment, &segment)) return std::nullopt;
    if (segment.p_type == PT_INTERP) elf.interpreter = file.Text(segment.p_offset);
  }
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section{}, names{};
    if (!Section(file, header, i, &section)) return std::nullopt;
    const bool symbols = section.sh_type == SHT_DYNSYM || section.sh_type == SHT_SYMTAB;
    if (!symbols && section.sh_type != SHT_DYNAMIC) continue;
    if (!Section(file, header, section.sh_link, &names)) return std::nullopt;
    if (symbols) {
      ReadSymbols(file, section, names, &elf);
    } else {
      ReadDynamic(file, section, names, &elf);
    }
  }
  elf.names_policy = file.bytes().find("INCCL_NCCL_POLICY") != std::string_view::npos;
  elf.opens_nccl = file.bytes().find("libnccl.so") != std::string_view::npos;
  return elf;
}

}  // namespace inccl::tools
