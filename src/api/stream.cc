// SPDX-License-Identifier: Apache-2.0
//
// The C API: host streams. A handle is looked up and never dereferenced, so an invalid one is an
// error and not a crash.
#include <unordered_map>

#include "api/handles.h"
#include "base/mutex.h"
#include "base/thread.h"

struct ccl_stream {
  char unused;
};

namespace inccl {
namespace {

class StreamTable {
 public:
  ccl_stream_t Add() {
    auto handle = std::make_unique<ccl_stream>();
    auto stream = std::make_shared<HostStream>();
    const WriterLock lock(&mutex_);
    ccl_stream_t key = handle.get();
    streams_.emplace(key, Entry{std::move(handle), std::move(stream)});
    return key;
  }
  std::shared_ptr<HostStream> Find(ccl_stream_t key) const {
    const ReaderLock lock(&mutex_);
    const auto found = streams_.find(key);
    return found == streams_.end() ? nullptr : found->second.stream;
  }
  bool Remove(ccl_stream_t key) {
    const WriterLock lock(&mutex_);
    return streams_.erase(key) == 1;
  }

 private:
  struct Entry {
    std::unique_ptr<ccl_stream> handle;
    std::shared_ptr<HostStream> stream;
  };
  mutable SharedMutex mutex_;
  std::unordered_map<ccl_stream_t, Entry> streams_ INCCL_GUARDED_BY(mutex_);
};

StreamTable& Streams() {
  static NoDestructor<StreamTable> table;
  return *table;
}

}  // namespace

std::shared_ptr<Stream> FindStream(ccl_stream_t stream) { return Streams().Find(stream); }

Status NoStream() {
  return InvalidArgument("stream: neither NULL nor a stream of ccl_stream_create, or destroyed");
}

}  // namespace inccl

using inccl::Guarded;
using inccl::InvalidArgument;
using inccl::Result;
using inccl::Status;

ccl_result_t ccl_stream_create(ccl_stream_t* stream) {
  return Guarded([&]() -> Status {
    if (stream == nullptr) return InvalidArgument("stream: NULL");
    *stream = inccl::Streams().Add();
    return Status::Ok();
  });
}

ccl_result_t ccl_stream_synchronize(ccl_stream_t stream) {
  return Guarded([&]() -> Status {
    const std::shared_ptr<inccl::HostStream> found = inccl::Streams().Find(stream);
    return found == nullptr ? inccl::NoStream() : found->Synchronize();
  });
}

ccl_result_t ccl_stream_query(ccl_stream_t stream) {
  return Guarded([&]() -> Status {
    const std::shared_ptr<inccl::HostStream> found = inccl::Streams().Find(stream);
    return found == nullptr ? inccl::NoStream() : found->Query();
  });
}

ccl_result_t ccl_stream_destroy(ccl_stream_t stream) {
  if (stream == nullptr) return CCL_SUCCESS;
  return Guarded([&]() -> Status {
    return inccl::Streams().Remove(stream) ? Status::Ok() : inccl::NoStream();
  });
}
