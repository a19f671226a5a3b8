// SPDX-License-Identifier: Apache-2.0
#include "ext/nccl/call_config.h"

#include <inccl/nccl_options.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ext/nccl/error.h"
#include "ext/nccl/library.h"

namespace inccl::nccl {
namespace {

constexpr int kMostOptions = 1024;  // a longer list is taken for a circle
constexpr int kMostCodecs = 256;

// The codecs of all specifications that calls have named. They stay: calls on streams use them
// until they have completed.
struct KnownCodec {
  char* spec;
  ccl_codec_t codec;
};
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
KnownCodec known[kMostCodecs];
int known_count = 0;

// Returns what is wrong, or nullptr. The caller holds the mutex.
const char* FindOrMake(const Library& library, const char* spec, ccl_codec_t* codec) {
  for (int i = 0; i < known_count; ++i) {
    if (strcmp(known[i].spec, spec) != 0) continue;
    *codec = known[i].codec;
    return nullptr;
  }
  if (known_count == kMostCodecs) return "one specification too many (256)";
  if (library.codec_create(codec, spec) != CCL_SUCCESS) return library.get_last_error(nullptr);
  char* const copy = strdup(spec);
  if (copy == nullptr) {
    (void)library.codec_destroy(*codec);
    return "out of memory";
  }
  known[known_count++] = {copy, *codec};
  return nullptr;
}

ResultCode ReadCodec(const char* function, const ConfigExt& option, CallCodec* codec) {
  const char* const spec = option.val.s;
  if (spec == nullptr) {
    Warn("%s: config->ext: the codec (option %d) is NULL", function, option.key.option_id);
    return CCL_INVALID_ARGUMENT;
  }
  codec->given = true;
  codec->codec = nullptr;
  if (strcmp(spec, "none") == 0) return CCL_SUCCESS;
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  pthread_mutex_lock(&mutex);
  const char* const wrong = FindOrMake(*library, spec, &codec->codec);
  pthread_mutex_unlock(&mutex);
  if (wrong == nullptr) return CCL_SUCCESS;
  Warn("%s: config->ext: codec \"%s\": %s", function, spec, wrong);
  return CCL_INVALID_ARGUMENT;
}

ResultCode ReadOptions(const char* function, const ConfigExt* option, bool compresses,
                       CallCodec* codec) {
  int count = 0;
  for (; option != nullptr; option = option->next) {
    if (++count > kMostOptions) {
      Warn("%s: config->ext: more than %d options: a circular list?", function, kMostOptions);
      return CCL_INVALID_ARGUMENT;
    }
    if (option->key.vendor_id != INCCL_NCCL_VENDOR_ID) continue;
    const char* wrong = nullptr;
    if (option->key.option_id != INCCL_NCCL_OPTION_CODEC) {
      wrong = "is unknown";
    } else if (!compresses) {
      wrong = "is for all-reduce, reduce-scatter and all-gather";
    } else if (codec->given) {
      wrong = "is there twice";
    }
    if (wrong != nullptr) {
      Warn("%s: config->ext: option %d of inccl %s", function, option->key.option_id, wrong);
      return CCL_INVALID_ARGUMENT;
    }
    const ResultCode result = ReadCodec(function, *option, codec);
    if (result != CCL_SUCCESS) return result;
  }
  return CCL_SUCCESS;
}

bool InRange(int value, int least) { return value == kUndefined || value >= least; }

// What is wrong with the fields that are hints; nullptr: nothing.
const char* WrongHint(const CollConfig& config) {
  if (!InRange(config.min_ctas, 1)) return "minCTAs";
  if (!InRange(config.max_ctas, 1)) return "maxCTAs";
  if (config.min_ctas != kUndefined && config.max_ctas != kUndefined &&
      config.min_ctas > config.max_ctas) {
    return "minCTAs, which is above maxCTAs";
  }
  if (!InRange(config.nvls_ctas, 1)) return "nvlsCTAs";
  if (!InRange(config.cga_cluster_size, 0)) return "cgaClusterSize";
  if (!InRange(config.cta_policy, 0)) return "CTAPolicy";
  // Nothing would record it, and its owner would read results that are not there.
  if (config.launch_completion_event != nullptr) return "launchCompletionEvent, which must be NULL";
  return nullptr;
}

}  // namespace

ResultCode ReadCallConfig(const char* function, const CollConfig* given, bool compresses,
                          CallCodec* codec) {
  if (given == nullptr) return CCL_SUCCESS;
  constexpr size_t kLeast = offsetof(CollConfig, launch_completion_event);  // 2.31
  if (given->size < kLeast) {
    Warn("%s: config->size: %zu is below %zu", function, given->size, kLeast);
    return CCL_INVALID_ARGUMENT;
  }
  CollConfig config{};
  memcpy(&config, given, given->size < sizeof config ? given->size : sizeof config);
  if (config.magic != kConfigMagic) {
    Warn("%s: ncclCollConfig_t argument not initialized via NCCL_COLLCONFIG_INITIALIZER", function);
    return CCL_INVALID_ARGUMENT;
  }
  constexpr unsigned kEventSince = 23200;
  if (config.version < kEventSince) config.launch_completion_event = nullptr;
  if (const char* const wrong = WrongHint(config); wrong != nullptr) {
    Warn("%s: config: wrong value of %s", function, wrong);
    return CCL_INVALID_ARGUMENT;
  }
  return ReadOptions(function, config.ext, compresses, codec);
}

}  // namespace inccl::nccl
