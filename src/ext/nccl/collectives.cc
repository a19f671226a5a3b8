// SPDX-License-Identifier: Apache-2.0
//
// Collectives, sends and receives.
#include "ext/nccl/collectives.h"

#include <inccl/nccl_options.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ext/nccl/communicators.h"
#include "ext/nccl/library.h"
#include "ext/nccl/log.h"
#include "ext/nccl/policy.h"
#include "ext/nccl/types.h"

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

namespace {

constexpr size_t kTypeBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
constexpr int kTypes = sizeof kTypeBytes / sizeof kTypeBytes[0];

ccl_datatype_t TypeOf(int type) { return static_cast<ccl_datatype_t>(type); }
ccl_redop_t OpOf(int op) { return static_cast<ccl_redop_t>(op); }

// In NCCL a send and its receive agree on the number of bytes; in libinccl also on the type. So
// they move bytes.
bool AsBytes(size_t count, int type, size_t* bytes) {
  if (type >= 0 && type < kTypes && !__builtin_mul_overflow(count, kTypeBytes[type], bytes)) {
    return true;
  }
  Warn("count %zu of datatype %d: invalid argument", count, type);
  return false;
}

// The arguments of a compressed call; `codec` NULL: the call runs uncompressed.
ccl_compression_t Compression(Kind kind, size_t count, int type, Comm comm, const CallCodec& own) {
  ccl_compression_t compression = CCL_COMPRESSION_INIT;
  int account = kOwnCodecs;
  compression.codec = own.codec;
  if (!own.given) {
    const PolicyChoice choice = ChooseByPolicy(kind, count, type, comm);
    compression.codec = choice.codec;
    account = choice.rule;
  }
  static const bool logging = Logging();
  if (!logging) return compression;
  if (account < 0 || (own.given && own.codec == nullptr)) account = kUncompressed;
  size_t bytes = 0;
  if (type < 0 || type >= kTypes || __builtin_mul_overflow(count, kTypeBytes[type], &bytes)) {
    return compression;  // a wrong argument
  }
  CountCall(account, bytes);
  if (compression.codec != nullptr) compression.stats = TakeStats(account, comm);
  return compression;
}

// After the call: one that has failed writes no stats.
ResultCode Compressed(const ccl_compression_t& how, Comm comm, ccl_result_t result) {
  if (result != CCL_SUCCESS) DropStats(how.stats);
  return FromCall(comm, result);
}

}  // namespace

ResultCode AllReduce(const void* send, void* recv, size_t count, int type, int op, Comm comm,
                     CudaStream stream, const CallCodec& own) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  if (__builtin_expect(library->looks || own.given, 0)) {
    const ccl_compression_t how = Compression(Kind::kAllReduce, count, type, comm, own);
    if (how.codec != nullptr) {
      return Compressed(how, comm,
                        library->allreduce_compressed(send, recv, count, TypeOf(type), OpOf(op),
                                                      &how, comm, StreamOf(stream)));
    }
  }
  return FromCall(
      comm, library->allreduce(send, recv, count, TypeOf(type), OpOf(op), comm, StreamOf(stream)));
}

ResultCode ReduceScatter(const void* send, void* recv, size_t count, int type, int op, Comm comm,
                         CudaStream stream, const CallCodec& own) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  if (__builtin_expect(library->looks || own.given, 0)) {
    const ccl_compression_t how = Compression(Kind::kReduceScatter, count, type, comm, own);
    if (how.codec != nullptr) {
      return Compressed(how, comm,
                        library->reduce_scatter_compressed(send, recv, count, TypeOf(type),
                                                           OpOf(op), &how, comm, StreamOf(stream)));
    }
  }
  return FromCall(comm, library->reduce_scatter(send, recv, count, TypeOf(type), OpOf(op), comm,
                                                StreamOf(stream)));
}

ResultCode AllGather(const void* send, void* recv, size_t count, int type, Comm comm,
                     CudaStream stream, const CallCodec& own) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  if (__builtin_expect(library->looks || own.given, 0)) {
    const ccl_compression_t how = Compression(Kind::kAllGather, count, type, comm, own);
    if (how.codec != nullptr) {
      return Compressed(how, comm,
                        library->allgather_compressed(send, recv, count, TypeOf(type), &how, comm,
                                                      StreamOf(stream)));
    }
  }
  return FromCall(comm,
                  library->allgather(send, recv, count, TypeOf(type), comm, StreamOf(stream)));
}

}  // namespace inccl::nccl

using inccl::nccl::AsBytes;
using inccl::nccl::Comm;
using inccl::nccl::CudaStream;
using inccl::nccl::Fail;
using inccl::nccl::FindLibrary;
using inccl::nccl::FromCall;
using inccl::nccl::Library;
using inccl::nccl::OpOf;
using inccl::nccl::StreamOf;
using inccl::nccl::TypeOf;

INCCL_NCCL_EXPORT(int, AllReduce,
                  (const void* send, void* recv, size_t count, int type, int op, Comm comm,
                   CudaStream stream)) {
  return inccl::nccl::AllReduce(send, recv, count, type, op, comm, stream, {});
}

INCCL_NCCL_EXPORT(int, ReduceScatter,
                  (const void* send, void* recv, size_t count, int type, int op, Comm comm,
                   CudaStream stream)) {
  return inccl::nccl::ReduceScatter(send, recv, count, type, op, comm, stream, {});
}

INCCL_NCCL_EXPORT(int, AllGather,
                  (const void* send, void* recv, size_t count, int type, Comm comm,
                   CudaStream stream)) {
  return inccl::nccl::AllGather(send, recv, count, type, comm, stream, {});
}

INCCL_NCCL_EXPORT(int, Broadcast,
                  (const void* send, void* recv, size_t count, int type, int root, Comm comm,
                   CudaStream stream)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return FromCall(
      comm, library->broadcast(send, recv, count, TypeOf(type), root, comm, StreamOf(stream)));
}

INCCL_NCCL_EXPORT(int, Bcast,
                  (void* buffer, size_t count, int type, int root, Comm comm, CudaStream stream)) {
  return pncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

INCCL_NCCL_EXPORT(int, Reduce,
                  (const void* send, void* recv, size_t count, int type, int op, int root,
                   Comm comm, CudaStream stream)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return FromCall(comm, library->reduce(send, recv, count, TypeOf(type), OpOf(op), root, comm,
                                        StreamOf(stream)));
}

INCCL_NCCL_EXPORT(int, AlltoAll,
                  (const void* send, void* recv, size_t count, int type, Comm comm,
                   CudaStream stream)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return FromCall(comm, library->alltoall(send, recv, count, TypeOf(type), comm, StreamOf(stream)));
}

INCCL_NCCL_EXPORT(int, Gather,
                  (const void* send, void* recv, size_t count, int type, int root, Comm comm,
                   CudaStream stream)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return FromCall(comm,
                  library->gather(send, recv, count, TypeOf(type), root, comm, StreamOf(stream)));
}

INCCL_NCCL_EXPORT(int, Scatter,
                  (const void* send, void* recv, size_t count, int type, int root, Comm comm,
                   CudaStream stream)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return FromCall(comm,
                  library->scatter(send, recv, count, TypeOf(type), root, comm, StreamOf(stream)));
}

INCCL_NCCL_EXPORT(int, Send,
                  (const void* send, size_t count, int type, int peer, Comm comm,
                   CudaStream stream)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  size_t bytes = 0;
  if (!AsBytes(count, type, &bytes)) return Fail(CCL_INVALID_ARGUMENT);
  return FromCall(comm, library->send(send, bytes, CCL_UINT8, peer, comm, StreamOf(stream)));
}

INCCL_NCCL_EXPORT(int, Recv,
                  (void* recv, size_t count, int type, int peer, Comm comm, CudaStream stream)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  size_t bytes = 0;
  if (!AsBytes(count, type, &bytes)) return Fail(CCL_INVALID_ARGUMENT);
  return FromCall(comm, library->recv(recv, bytes, CCL_UINT8, peer, comm, StreamOf(stream)));
}

INCCL_NCCL_EXPORT(int, RedOpCreatePreMulSum,
                  (int* op, void* scalar, int type, int residence, Comm comm)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  ccl_redop_t made = CCL_SUM;
  const ccl_result_t result =
      library->redop_create_premulsum(op == nullptr ? nullptr : &made, scalar, TypeOf(type),
                                      static_cast<ccl_scalar_residence_t>(residence), comm);
  if (result == CCL_SUCCESS) *op = made;
  return FromCall(comm, result);
}

INCCL_NCCL_EXPORT(int, RedOpDestroy, (int op, Comm comm)) {
  const Library* const library = FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  return FromCall(comm, library->redop_destroy(OpOf(op), comm));
}

// The calls of NCCL 2.31 with a configuration each: a codec, and hints, which are checked and have
// no effect.

using inccl::nccl::CallCodec;
using inccl::nccl::CollConfig;
using inccl::nccl::Comm;
using inccl::nccl::CudaStream;
using inccl::nccl::Fail;
using inccl::nccl::ReadCallConfig;
using inccl::nccl::ResultCode;

INCCL_NCCL_EXPORT(int, AllReduceConfig,
                  (const void* send, void* recv, size_t count, int type, int op, Comm comm,
                   CudaStream stream, const CollConfig* config)) {
  CallCodec codec;
  const ResultCode result = ReadCallConfig("ncclAllReduceConfig", config, true, &codec);
  if (result != CCL_SUCCESS) return Fail(result);
  return inccl::nccl::AllReduce(send, recv, count, type, op, comm, stream, codec);
}

INCCL_NCCL_EXPORT(int, ReduceScatterConfig,
                  (const void* send, void* recv, size_t count, int type, int op, Comm comm,
                   CudaStream stream, const CollConfig* config)) {
  CallCodec codec;
  const ResultCode result = ReadCallConfig("ncclReduceScatterConfig", config, true, &codec);
  if (result != CCL_SUCCESS) return Fail(result);
  return inccl::nccl::ReduceScatter(send, recv, count, type, op, comm, stream, codec);
}

INCCL_NCCL_EXPORT(int, AllGatherConfig,
                  (const void* send, void* recv, size_t count, int type, Comm comm,
                   CudaStream stream, const CollConfig* config)) {
  CallCodec codec;
  const ResultCode result = ReadCallConfig("ncclAllGatherConfig", config, true, &codec);
  if (result != CCL_SUCCESS) return Fail(result);
  return inccl::nccl::AllGather(send, recv, count, type, comm, stream, codec);
}

INCCL_NCCL_EXPORT(int, BroadcastConfig,
                  (const void* send, void* recv, size_t count, int type, int root, Comm comm,
                   CudaStream stream, const CollConfig* config)) {
  CallCodec codec;
  const ResultCode result = ReadCallConfig("ncclBroadcastConfig", config, false, &codec);
  if (result != CCL_SUCCESS) return Fail(result);
  return pncclBroadcast(send, recv, count, type, root, comm, stream);
}

INCCL_NCCL_EXPORT(int, ReduceConfig,
                  (const void* send, void* recv, size_t count, int type, int op, int root,
                   Comm comm, CudaStream stream, const CollConfig* config)) {
  CallCodec codec;
  const ResultCode result = ReadCallConfig("ncclReduceConfig", config, false, &codec);
  if (result != CCL_SUCCESS) return Fail(result);
  return pncclReduce(send, recv, count, type, op, root, comm, stream);
}

INCCL_NCCL_EXPORT(int, AlltoAllConfig,
                  (const void* send, void* recv, size_t count, int type, Comm comm,
                   CudaStream stream, const CollConfig* config)) {
  CallCodec codec;
  const ResultCode result = ReadCallConfig("ncclAlltoAllConfig", config, false, &codec);
  if (result != CCL_SUCCESS) return Fail(result);
  return pncclAlltoAll(send, recv, count, type, comm, stream);
}

INCCL_NCCL_EXPORT(int, GatherConfig,
                  (const void* send, void* recv, size_t count, int type, int root, Comm comm,
                   CudaStream stream, const CollConfig* config)) {
  CallCodec codec;
  const ResultCode result = ReadCallConfig("ncclGatherConfig", config, false, &codec);
  if (result != CCL_SUCCESS) return Fail(result);
  return pncclGather(send, recv, count, type, root, comm, stream);
}

INCCL_NCCL_EXPORT(int, ScatterConfig,
                  (const void* send, void* recv, size_t count, int type, int root, Comm comm,
                   CudaStream stream, const CollConfig* config)) {
  CallCodec codec;
  const ResultCode result = ReadCallConfig("ncclScatterConfig", config, false, &codec);
  if (result != CCL_SUCCESS) return Fail(result);
  return pncclScatter(send, recv, count, type, root, comm, stream);
}

namespace inccl::nccl {
namespace {

// Initial-exec: no call of the loader for each use.
__attribute__((tls_model("initial-exec"))) thread_local int depth = 0;
__attribute__((tls_model("initial-exec"))) thread_local ResultCode first_error = CCL_SUCCESS;
__attribute__((tls_model("initial-exec"))) thread_local ResultCode progress = CCL_SUCCESS;

// Ends the group of libinccl without starting its calls: a call that fails spoils it.
void Drop(const Library& library) {
  const Silence silence;
  (void)library.allreduce(nullptr, nullptr, 0, CCL_FLOAT32, CCL_SUM, nullptr, nullptr);
  (void)library.group_end();
}

// Returns true at the outermost end.
bool Leave(const char* function, ResultCode* result) {
  if (depth == 0) {
    Warn("%s: not in a group call.", function);
    *result = CCL_INVALID_USAGE;
    return false;
  }
  *result = CCL_SUCCESS;
  return --depth == 0;
}

ResultCode TakeFirstError() {
  const ResultCode error = first_error;
  first_error = CCL_SUCCESS;
  return error;
}

}  // namespace

bool InGroup() { return depth > 0; }

ResultCode Fail(ResultCode result) {
  if (depth > 0 && first_error == CCL_SUCCESS) first_error = result;
  return result;
}

void ProgressesAfterGroup() { progress = CCL_IN_PROGRESS; }

}  // namespace inccl::nccl

using inccl::nccl::Library;
using inccl::nccl::ResultCode;

INCCL_NCCL_EXPORT(int, GroupStart, ()) {
  const Library* const library = inccl::nccl::FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  if (inccl::nccl::depth == 0) {
    const ResultCode result = inccl::nccl::From(library->group_start());
    if (result != CCL_SUCCESS) return result;
  }
  ++inccl::nccl::depth;
  return CCL_SUCCESS;
}

INCCL_NCCL_EXPORT(int, GroupEnd, ()) {
  ResultCode result = CCL_SUCCESS;
  if (!inccl::nccl::Leave("ncclGroupEnd", &result)) return result;
  const Library* const library = inccl::nccl::FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  result = inccl::nccl::TakeFirstError();
  if (result == CCL_SUCCESS) {
    result = inccl::nccl::From(library->group_end());
  } else {
    inccl::nccl::Drop(*library);
  }
  inccl::nccl::GroupEnded(result == CCL_SUCCESS);
  const ResultCode progress = inccl::nccl::progress;
  inccl::nccl::progress = CCL_SUCCESS;
  return result == CCL_SUCCESS ? progress : result;
}

INCCL_NCCL_EXPORT(int, GroupSimulateEnd, (inccl::nccl::SimInfo * info)) {
  ResultCode result = CCL_SUCCESS;
  if (!inccl::nccl::Leave("ncclGroupSimulateEnd", &result)) return result;
  const Library* const library = inccl::nccl::FindLibrary();
  if (library == nullptr) return CCL_SYSTEM_ERROR;
  result = inccl::nccl::TakeFirstError();
  inccl::nccl::Drop(*library);
  inccl::nccl::GroupEnded(false);
  inccl::nccl::progress = CCL_SUCCESS;
  if (result != CCL_SUCCESS || info == nullptr) return result;
  if (info->magic != inccl::nccl::kSimInfoMagic || info->size < sizeof *info) {
    inccl::nccl::Warn("ncclSimInfo_t argument not initialized via NCCL_SIM_INFO_INITIALIZER");
    return CCL_INVALID_ARGUMENT;
  }
  info->estimated_time = 0;  // there is no estimate
  return CCL_SUCCESS;
}
