// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/environment.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <initializer_list>

#include "ext/nccl/error.h"
#include "ext/nccl/log.h"

namespace inccl::nccl {
namespace {

// Variables with the same values in both libraries.
struct Same {
  const char* nccl;
  const char* inccl;
  bool integer;
  long long least, most;
};
constexpr Same kSame[] = {
    {"NCCL_SOCKET_IFNAME", "INCCL_SOCKET_IFNAME", false, 0, 0},
    {"NCCL_HOSTID", "INCCL_HOSTID", false, 0, 0},
    {"NCCL_IB_HCA", "INCCL_IB_HCA", false, 0, 0},
    {"NCCL_IB_GID_INDEX", "INCCL_IB_GID_INDEX", true, -1, 255},
    {"NCCL_IB_TC", "INCCL_IB_TC", true, 0, 255},
    {"NCCL_IB_TIMEOUT", "INCCL_IB_TIMEOUT", true, 1, 31},
};

// NCCL's configuration files, the user's before the system's: lines NAME=value without blanks,
// where
// '#' at the start of a line begins a comment.
constexpr const char* kSystemFile = "/etc/nccl.conf";

struct File {
  char* text;  // each line ends with '\0'
  size_t bytes;
};

pthread_once_t files_read = PTHREAD_ONCE_INIT;
File files[2];

const char* FromEnvironment(const char* name) {
  const char* const value = secure_getenv(name);
  return value != nullptr && value[0] != '\0' ? value : nullptr;
}

// A file that is not there, or without memory for it, has no lines.
void Read(const char* path, File* into) {
  FILE* const file = OpenToRead(path);
  if (file == nullptr) return;
  struct stat info {};
  const size_t most = fstat(fileno(file), &info) == 0 ? static_cast<size_t>(info.st_size) : 0;
  if (auto* const text = static_cast<char*>(malloc(most + 1)); text != nullptr) {
    into->bytes = fread(text, 1, most, file);
    text[into->bytes] = '\0';
    for (size_t i = 0; i < into->bytes; ++i) {
      if (text[i] == '\n' || text[i] == '\r') text[i] = '\0';
    }
    into->text = text;
  }
  fclose(file);
}

void ReadFiles() {
  char below_home[PATH_MAX];
  const char* path = FromEnvironment("NCCL_CONF_FILE");
  if (const char* const home = FromEnvironment("HOME"); path == nullptr && home != nullptr) {
    const int length = snprintf(below_home, sizeof below_home, "%s/.nccl.conf", home);
    if (length > 0 && static_cast<size_t>(length) < sizeof below_home) path = below_home;
  }
  if (path != nullptr) Read(path, &files[0]);
  Read(kSystemFile, &files[1]);
}

// libinccl has no level ABORT, and logs warnings unless it is told not to.
const char* LevelOfLibrary() {
  switch (DebugLevel()) {
    case Level::kInfo: return "INFO";
    case Level::kWarn: return "WARN";
    case Level::kVersion:
    case Level::kNone: break;
  }
  return "NONE";
}

// NCCL reads integers as C does, 0x6a and 010 too, and takes its default where there is none.
bool ToDecimal(const Same& same, const char* value, char (&text)[32]) {
  char* end = nullptr;
  errno = 0;
  const long long number = strtoll(value, &end, 0);
  if (errno != 0 || end == value || *end != '\0' || number < same.least || number > same.most) {
    Warn("%s=%s is not a whole number from %lld to %lld; the default is used", same.nccl, value,
         same.least, same.most);
    return false;
  }
  snprintf(text, sizeof text, "%lld", number);
  return true;
}

}  // namespace

FILE* OpenToRead(const char* path) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  FILE* const file = fd < 0 ? nullptr : fdopen(fd, "r");
  if (fd >= 0 && file == nullptr) close(fd);
  return file;
}

const char* Variable(const char* name) {
  if (const char* const value = FromEnvironment(name); value != nullptr) return value;
  pthread_once(&files_read, ReadFiles);
  const size_t length = strlen(name);
  for (const File& file : files) {
    for (const char* line = file.text; line < file.text + file.bytes; line += strlen(line) + 1) {
      if (strncmp(line, name, length) == 0 && line[length] == '=' && line[length + 1] != '\0') {
        return line + length + 1;
      }
    }
  }
  return nullptr;
}

void PassVariables(const Library& library) {
  (void)library.set_variable("INCCL_DEBUG", LevelOfLibrary(), "NCCL_DEBUG");
  for (const Same& same : kSame) {
    const char* value = Variable(same.nccl);
    if (value == nullptr || FromEnvironment(same.inccl) != nullptr) continue;
    char decimal[32];
    if (same.integer) value = ToDecimal(same, value, decimal) ? decimal : nullptr;
    if (value == nullptr) continue;
    (void)library.set_variable(same.inccl, value, same.nccl);
    Info("%s=%s is used as %s", same.nccl, value, same.inccl);
  }
  for (const char* name : {"NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN",
                           "NCCL_ALGO", "NCCL_PROTO", "NCCL_COMM_ID"}) {
    if (Variable(name) != nullptr) Info("%s is ignored by inccl", name);
  }
}

}  // namespace inccl::nccl
