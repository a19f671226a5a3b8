// SPDX-License-Identifier: Apache-2.0
#include "perf/overhead/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "inccl/ccl.h"
#include "perf/overhead/memory.h"
#include "perf/support/agree.h"
#include "perf/support/cause.h"
#include "perf/support/statistics.h"
#include "perf/support/streaming.h"

namespace inccl::perf {
namespace {

Status From(ccl_result_t result, const std::string& what, ccl_comm_t comm) {
  if (result == CCL_SUCCESS) return {};
  return {static_cast<Code>(result), fmt::format("{}: {}", what, ccl_get_last_error(comm))};
}

struct DestroyComm {
  void operator()(ccl_comm_t comm) const { ccl_comm_destroy(comm); }
};
struct DestroyCodec {
  void operator()(ccl_codec_t codec) const { ccl_codec_destroy(codec); }
};
using Comm = std::unique_ptr<ccl_comm, DestroyComm>;
using Codec = std::unique_ptr<ccl_codec, DestroyCodec>;

// All ranks start together; the time from the first one's start to the last one's end.
Result<double> TimeTogether(World& world, const std::function<Status()>& body) {
  if (Status s = world.Barrier(); !s.ok()) return s;
  Interval mine{SharedMicroseconds(), 0};
  const Status status = body();
  mine.end = SharedMicroseconds();
  if (!status.ok()) return status;
  Result<std::vector<Interval>> all = Gather(world, mine);
  if (!all.ok()) return all.status();
  return SpanOf(*all);
}

Status CreateComm(World& world, Comm* comm) {
  const Result<ccl_unique_id_t> id = ShareUniqueId(world);
  if (!id.ok()) return id.status();
  ccl_comm_t made = nullptr;
  Status s = From(ccl_comm_init_rank(&made, world.size(), *id, world.rank()), "ccl_comm_init_rank",
                  nullptr);
  comm->reset(made);
  return s;
}

struct Calls {
  ccl_comm_t comm;
  float* send;
  float* recv;
  ccl_codec_t codec;  // nullptr: the call without compression

  Status AllReduce(size_t count) const {
    if (codec == nullptr) {
      return From(ccl_allreduce(send, recv, count, CCL_FLOAT32, CCL_SUM, comm, nullptr),
                  "ccl_allreduce", comm);
    }
    ccl_compression_t compression = CCL_COMPRESSION_INIT;
    compression.codec = codec;
    return From(ccl_allreduce_compressed(send, recv, count, CCL_FLOAT32, CCL_SUM, &compression,
                                         comm, nullptr),
                "ccl_allreduce_compressed", comm);
  }
};

// Sum and maximum over the ranks of what each has grown by since `before`.
Status Grown(World& world, uint64_t before, uint64_t* sum, uint64_t* most) {
  if (Status s = world.Barrier(); !s.ok()) return s;  // pages become shared as the others come
  Result<uint64_t> now = ProportionalSize();
  if (!now.ok()) return now.status();
  Result<std::vector<uint64_t>> all = Gather(world, *now > before ? *now - before : 0);
  if (!all.ok()) return all.status();
  for (const uint64_t bytes : *all) {
    *sum += bytes;
    *most = std::max(*most, bytes);
  }
  return {};
}

// One rank after the other, so that none takes the core of another: rank 0's time counts.
Result<double> TimeEmpty(World& world, const OverheadOptions& options, const Calls& calls) {
  std::vector<double> times;
  for (int turn = 0; turn < world.size(); ++turn) {
    if (Status s = world.Barrier(); !s.ok()) return s;
    if (turn != world.rank()) continue;
    for (uint64_t batch = 0; batch < options.batches; ++batch) {
      const double start = SharedMicroseconds();
      for (uint64_t i = 0; i < options.calls; ++i) {
        if (Status s = calls.AllReduce(0); !s.ok()) return s;
      }
      const double time = SharedMicroseconds() - start;
      times.push_back(time * 1000 / static_cast<double>(options.calls));
    }
  }
  return Median(std::move(times));
}

// A number of every run, in place of that of the first.
template <typename Run, typename Get>
void TakeMedian(const std::vector<Run>& runs, Run* result, Get get) {
  std::vector<double> values;
  for (const Run& run : runs) values.push_back(static_cast<double>(get(const_cast<Run&>(run))));
  auto& place = get(*result);
  place = static_cast<std::remove_reference_t<decltype(place)>>(Median(std::move(values)));
}

Result<Overhead> Measure(World& world, const OverheadOptions& options, Comm* owner) {
  Overhead overhead;
  const uint64_t largest = *std::max_element(options.sizes.begin(), options.sizes.end());
  std::vector<float> send(largest / sizeof(float), 1.0f), recv(largest / sizeof(float), 2.0f);
  if (Status s = world.Barrier(); !s.ok()) return s;
  Result<uint64_t> before = ProportionalSize();
  if (!before.ok()) return before.status();

  Comm& comm = *owner;
  Result<double> init = TimeTogether(world, [&] { return CreateComm(world, &comm); });
  if (!init.ok()) return init.status();
  overhead.init_us = *init;
  Status grown = Grown(world, *before, &overhead.created_bytes, &overhead.created_most);
  if (!grown.ok()) return grown;

  std::vector<Codec> codecs;
  for (const std::string& spec : options.codecs) {
    Calls calls{comm.get(), send.data(), recv.data(), nullptr};
    std::string name = "allreduce";
    if (spec != "none") {
      if (Status s = From(ccl_codec_create(&calls.codec, spec.c_str()), spec, nullptr); !s.ok()) {
        return s;
      }
      codecs.emplace_back(calls.codec);
      name += " " + spec;
    }
    for (const uint64_t bytes : options.sizes) {
      FirstCalls times{name, bytes, 0, 0};
      for (double* time : {&times.first_us, &times.second_us}) {
        Result<double> one =
            TimeTogether(world, [&] { return calls.AllReduce(bytes / sizeof(float)); });
        if (!one.ok()) return one.status();
        *time = *one;
      }
      overhead.first.push_back(times);
    }
    Result<double> empty = TimeEmpty(world, options, calls);
    if (!empty.ok()) return empty.status();
    overhead.empty.push_back({name, *empty});
  }
  grown = Grown(world, *before, &overhead.used_bytes, &overhead.used_most);
  if (!grown.ok()) return grown;
  // No rank destroys what another still uses.
  if (Status s = world.Barrier(); !s.ok()) return s;
  return overhead;
}

}  // namespace

Result<Overhead> MeasureOverhead(World& world, const OverheadOptions& options) {
  Comm comm;
  Result<Overhead> overhead = Measure(world, options, &comm);
  if (overhead.ok()) return overhead;
  return WithCause(overhead.status(), comm.get());
}

Overhead MedianOf(const std::vector<Overhead>& runs) {
  Overhead result = runs.front();
  const auto take = [&](auto get) { TakeMedian(runs, &result, get); };
  take([](Overhead & o) -> auto& { return o.init_us; });
  take([](Overhead & o) -> auto& { return o.created_bytes; });
  take([](Overhead & o) -> auto& { return o.created_most; });
  take([](Overhead & o) -> auto& { return o.used_bytes; });
  take([](Overhead & o) -> auto& { return o.used_most; });
  for (size_t i = 0; i < result.first.size(); ++i) {
    take([i](Overhead & o) -> auto& { return o.first[i].first_us; });
    take([i](Overhead & o) -> auto& { return o.first[i].second_us; });
  }
  for (size_t i = 0; i < result.empty.size(); ++i) {
    take([i](Overhead & o) -> auto& { return o.empty[i].nanoseconds; });
  }
  return result;
}

}  // namespace inccl::perf
