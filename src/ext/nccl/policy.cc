// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/policy.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <initializer_list>

#include "ext/nccl/communicators.h"
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

namespace {

struct Field {
  const char* name;
  int Config::*value;
  unsigned since;  // the version of NCCL that added it
  int least, most;
};

constexpr Field kFields[] = {
    {"blocking", &Config::blocking, 21400, 0, 1},
    {"cgaClusterSize", &Config::cga_cluster_size, 21700, 0, INT_MAX},
    {"minCTAs", &Config::min_ctas, 21700, 1, INT_MAX},
    {"maxCTAs", &Config::max_ctas, 21700, 1, INT_MAX},
    {"splitShare", &Config::split_share, 21800, 0, 1},
    {"trafficClass", &Config::traffic_class, 22600, 0, INT_MAX},
    {"collnetEnable", &Config::collnet_enable, 22700, 0, 1},
    {"CTAPolicy", &Config::cta_policy, 22700, 0, INT_MAX},
    {"shrinkShare", &Config::shrink_share, 22700, 0, 1},
    {"nvlsCTAs", &Config::nvls_ctas, 22700, 1, INT_MAX},
    {"nChannelsPerNetPeer", &Config::channels_per_net_peer, 22800, 1, INT_MAX},
    {"nvlinkCentricSched", &Config::nvlink_centric_sched, 22800, 0, 1},
};
constexpr unsigned kCommNameSince = 22700;

ResultCode Copy(const Config& given, Config* config) {
  if (given.size < offsetof(Config, blocking)) {
    Warn("ncclConfig_t: size %zu is too small", given.size);
    return CCL_INVALID_ARGUMENT;
  }
  const size_t bytes = given.size < sizeof *config ? given.size : sizeof *config;
  memcpy(static_cast<void*>(config), &given, bytes);
  if (config->magic != kConfigMagic) {
    Warn("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    return CCL_INVALID_ARGUMENT;
  }
  for (const Field& field : kFields) {
    int* const value = &(config->*field.value);
    if (config->version < field.since) *value = kUndefined;
    if (*value == kUndefined || (*value >= field.least && *value <= field.most)) continue;
    Warn("Invalid config %s attribute value %d", field.name, *value);
    return CCL_INVALID_ARGUMENT;
  }
  if (config->version < kCommNameSince) config->comm_name = nullptr;
  if (config->min_ctas != kUndefined && config->max_ctas != kUndefined &&
      config->min_ctas > config->max_ctas) {
    Warn("Invalid config: minCTAs %d is greater than maxCTAs %d", config->min_ctas,
         config->max_ctas);
    return CCL_INVALID_ARGUMENT;
  }
  return CCL_SUCCESS;
}

}  // namespace

ResultCode Convert(const Config* given, OwnConfig* own) {
  Config config{};
  for (const Field& field : kFields) config.*field.value = kUndefined;
  if (given != nullptr) {
    const ResultCode result = Copy(*given, &config);
    if (result != CCL_SUCCESS) return result;
  }
  const char* const blocking = Variable("NCCL_COMM_BLOCKING");
  if (blocking != nullptr && (strcmp(blocking, "0") == 0 || strcmp(blocking, "1") == 0)) {
    config.blocking = blocking[0] - '0';
  }
  own->config.blocking = config.blocking == 0 ? 0 : 1;
  if (config.comm_name != nullptr) {
    strncpy(own->name, config.comm_name, sizeof own->name - 1);
    own->config.name = own->name;
  }
  return CCL_SUCCESS;
}

namespace {

constexpr size_t kTextBytes = 16384;

struct Type {
  const char* name;
  int number;
  size_t bytes;
};
// Others are never compressed: integers may be indices or flags.
constexpr Type kTypes[] = {{"float16", CCL_FLOAT16, 2},
                           {"float32", CCL_FLOAT32, 4},
                           {"float64", CCL_FLOAT64, 8},
                           {"bfloat16", CCL_BFLOAT16, 2}};
constexpr const char* kKinds[] = {"allreduce", "reduce_scatter", "allgather"};  // by Kind

struct Rule {
  int kind;          // -1: any
  int type;          // -1: any
  size_t least;      // bytes
  const char* name;  // pattern of communicators' names; NULL: any
  const char* codec_text;
  ccl_codec_t codec;  // NULL: uncompressed
};

// Written once, before the library is published.
Rule rules[kMostRules];
int rule_count = 0;
bool broken = false;
char texts[kTextBytes];  // the rules point into it

const Type* FindType(int number) {
  for (const Type& type : kTypes) {
    if (type.number == number) return &type;
  }
  return nullptr;
}

char* Trim(char* text) {
  while (*text == ' ' || *text == '\t') ++text;
  for (size_t n = strlen(text); n > 0 && strchr(" \t\r", text[n - 1]) != nullptr; --n) {
    text[n - 1] = '\0';
  }
  return text;
}

bool ParseBytes(const char* text, size_t* bytes) {
  if (text[0] < '0' || text[0] > '9') return false;
  char* end = nullptr;
  errno = 0;
  const unsigned long long number = strtoull(text, &end, 10);
  int shift = 0;
  if (*end != '\0') {
    constexpr const char* kUnits = "KMG";
    const char* const unit = strchr(kUnits, toupper(static_cast<unsigned char>(*end)));
    if (unit == nullptr || end[1] != '\0') return false;
    shift = 10 * static_cast<int>(unit - kUnits + 1);
  }
  if (errno != 0 || number > SIZE_MAX >> shift) return false;
  *bytes = static_cast<size_t>(number) << shift;
  return true;
}

template <typename Equal>
bool ParseName(const char* text, int count, Equal equal, int* value) {
  *value = -1;
  if (strcmp(text, "*") == 0) return true;
  for (int i = 0; i < count; ++i) {
    if (equal(i, value)) return true;
  }
  return false;
}

bool ParseKind(const char* text, int* kind) {
  return ParseName(
      text, sizeof kKinds / sizeof kKinds[0],
      [text](int i, int* value) {
        *value = i;
        return strcmp(kKinds[i], text) == 0;
      },
      kind);
}

bool ParseType(const char* text, int* type) {
  return ParseName(
      text, sizeof kTypes / sizeof kTypes[0],
      [text](int i, int* value) {
        *value = kTypes[i].number;
        return strcmp(kTypes[i].name, text) == 0;
      },
      type);
}

// Parses one rule. Returns what is wrong, or nullptr.
const char* ParseRule(char* text, const Library& library, Rule* rule) {
  char* const arrow = strstr(text, "->");
  if (arrow == nullptr) return "has no ->";
  *arrow = '\0';
  rule->codec_text = Trim(arrow + 2);
  char* fields[4] = {};
  int count = 0;
  char* rest = text;
  for (char* field; (field = strsep(&rest, ",")) != nullptr; ++count) {
    if (count == 4) return "has more than four fields before ->";
    fields[count] = Trim(field);
  }
  if (count < 3) return "is not of the form collective,type,min_bytes[,comm-name] -> codec";
  if (!ParseKind(fields[0], &rule->kind)) {
    return "names a collective other than allreduce, reduce_scatter, allgather, *";
  }
  if (!ParseType(fields[1], &rule->type)) {
    return "names a type other than float16, float32, float64, bfloat16, *";
  }
  if (!ParseBytes(fields[2], &rule->least)) return "has a wrong number of bytes";
  rule->name = fields[3];
  if (strcmp(rule->codec_text, "none") == 0) return nullptr;
  if (library.codec_create(&rule->codec, rule->codec_text) == CCL_SUCCESS) return nullptr;
  return library.get_last_error(nullptr);
}

void ParseLine(char* line, const Library& library) {
  for (char* rule; !broken && (rule = strsep(&line, ";")) != nullptr;) {
    rule = Trim(rule);
    if (rule[0] == '\0' || rule[0] == '#') continue;
    char whole[256];
    snprintf(whole, sizeof whole, "%s", rule);
    const char* const wrong =
        rule_count == kMostRules ? "is one too many" : ParseRule(rule, library, &rules[rule_count]);
    if (wrong != nullptr) {
      Warn("INCCL_NCCL_POLICY: the rule \"%s\" %s", whole, wrong);
      broken = true;
      return;
    }
    ++rule_count;
  }
}

void Parse(char* text, const Library& library) {
  for (char* line; !broken && (line = strsep(&text, "\n")) != nullptr;) {
    line = Trim(line);
    if (line[0] != '#') ParseLine(line, library);
  }
}

bool ReadFile(const char* path) {
  FILE* const file = OpenToRead(path);
  if (file == nullptr) return false;
  const size_t bytes = fread(texts, 1, sizeof texts - 1, file);
  const bool longer = ferror(file) == 0 && fgetc(file) != EOF;
  const int error = longer ? EFBIG : ferror(file) != 0 ? errno : 0;
  fclose(file);
  texts[bytes] = '\0';
  errno = error;
  return error == 0;
}

pid_t reporter = 0;

void Report() {
  if (getpid() != reporter) return;  // a child of fork()
  char title[512];
  for (int i = 0; i < rule_count; ++i) {
    snprintf(title, sizeof title, "rule %d -> %s", i + 1, rules[i].codec_text);
    PrintAccount(i, title, true);
  }
  PrintAccount(kOwnCodecs, "codecs of single calls", false);
  PrintAccount(kUncompressed, "uncompressed all-reduce, reduce-scatter and all-gather", false);
}

}  // namespace

void ReadPolicy(Library* library) {
  const char* const policy = secure_getenv("INCCL_NCCL_POLICY");
  const char* const path = secure_getenv("INCCL_NCCL_POLICY_FILE");
  if (policy != nullptr && policy[0] != '\0') {
    if (strlen(policy) >= sizeof texts) {
      Warn("INCCL_NCCL_POLICY: longer than %zu bytes", sizeof texts - 1);
      broken = true;
      return;
    }
    snprintf(texts, sizeof texts, "%s", policy);
  } else if (path != nullptr && path[0] != '\0') {
    if (!ReadFile(path)) {
      Warn("INCCL_NCCL_POLICY_FILE: %s cannot be read (at most %zu bytes): %s", path,
           sizeof texts - 1, strerror(errno));
      broken = true;
      return;
    }
  }
  Parse(texts, *library);
  if (broken) return;
  library->looks = rule_count > 0 || Logging();
  reporter = getpid();
  if (Logging()) (void)atexit(Report);
}

ResultCode CheckPolicy() { return broken ? CCL_INVALID_ARGUMENT : CCL_SUCCESS; }

PolicyChoice ChooseByPolicy(Kind kind, size_t count, int type, Comm comm) {
  const Type* const known = FindType(type);
  size_t bytes = 0;
  if (known == nullptr || __builtin_mul_overflow(count, known->bytes, &bytes)) return {-1, nullptr};
  char name[kNameBytes];
  bool have_name = false;
  for (int i = 0; i < rule_count; ++i) {
    const Rule& rule = rules[i];
    if (rule.kind >= 0 && rule.kind != static_cast<int>(kind)) continue;
    if ((rule.type >= 0 && rule.type != type) || bytes < rule.least) continue;
    if (rule.name != nullptr) {
      if (!have_name) NameOf(comm, name);
      have_name = true;
      if (fnmatch(rule.name, name, 0) != 0) continue;
    }
    return {i, rule.codec};
  }
  return {-1, nullptr};
}

void TellPolicy(Comm comm, const char* name) {
  if (!Logging()) return;
  char text[512];
  if (rule_count == 0) {
    snprintf(text, sizeof text, "comm %p \"%s\": nothing is compressed", static_cast<void*>(comm),
             name);
    PrintLine("INFO", text);
  }
  for (int i = 0; i < rule_count; ++i) {
    const Rule& rule = rules[i];
    if (rule.name != nullptr && fnmatch(rule.name, name, 0) != 0) continue;
    const Type* const type = FindType(rule.type);
    snprintf(text, sizeof text, "comm %p \"%s\": %s of %s from %zu bytes on -> %s",
             static_cast<void*>(comm), name, rule.kind < 0 ? "any collective" : kKinds[rule.kind],
             type == nullptr ? "any type" : type->name, rule.least, rule.codec_text);
    PrintLine("INFO", text);
  }
}

}  // namespace inccl::nccl
