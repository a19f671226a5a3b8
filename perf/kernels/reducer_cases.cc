// SPDX-License-Identifier: Apache-2.0
#include "perf/kernels/reducer_cases.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "perf/support/output.h"
#include "perf/support/statistics.h"
#include "reduce/reducer.h"
#include "reduce/select.h"

namespace inccl::perf {
namespace {

constexpr double kShare = 0.01;  // k
constexpr int kTurns = 15;

using Vector = std::vector<float>;

// Normal; the magnitude changes every 4096 elements, as between layers.
Vector Gradient(uint64_t count) {
  Rng rng(1);
  Vector x(count);
  int octave = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (i % 4096 == 0) octave = -static_cast<int>(rng.Below(12));
    const double radius = std::sqrt(-2 * std::log(1 - rng.Uniform()));
    x[i] = static_cast<float>(std::ldexp(radius * std::cos(2 * M_PI * rng.Uniform()), octave));
  }
  return x;
}

// One element in 200 is not zero.
Vector Sparse(uint64_t count) {
  Rng rng(2);
  Vector x(count);
  for (float& value : x) value = rng.Below(200) == 0 ? static_cast<float>(rng.Uniform()) : 0.0f;
  return x;
}

// The state of a rank without others: what it does beside the collectives.
class LoneRank {
 public:
  LoneRank(const Reducer& reducer, uint64_t rows, uint64_t cols)
      : state_(reducer.NewState({.rows = rows, .cols = cols})) {}

  Status Call(const Vector& input, Vector* output) {
    ReducerUse use(state_.get(), lineage_);
    CollectiveArgs args;
    args.nranks = 1;
    args.step = state_->calls();
    state_->Begin(args, reinterpret_cast<const std::byte*>(input.data()),
                  reinterpret_cast<std::byte*>(output->data()));
    for (int round = 0; round < state_->rounds(); ++round) {
      Status status = state_->Produce(round, &sent_);
      if (status.ok()) status = state_->Consume(round, sent_, {});
      if (!status.ok()) return status;
    }
    state_->WriteResult();
    use.Commit(++calls_);
    return Status::Ok();
  }

 private:
  const std::unique_ptr<ReducerState> state_;
  const Lineage lineage_;
  std::vector<std::byte> sent_;
  uint64_t calls_ = 0;
};

struct Case {
  std::string name;
  const Vector* input;
  std::function<Status(const Vector& input, Vector* output)> run;
};

Case Selection(std::string name, SelectorKind kind, const Vector* input) {
  return {std::move(name), input,
          [selector = std::make_shared<Selector>(kind),
           indices = std::make_shared<std::vector<uint32_t>>()](const Vector& x, Vector*) {
            selector->Select(x, kShare, 1, indices.get());
            return Status::Ok();
          }};
}

Result<Case> WholeCall(const std::string& spec, const Vector* input) {
  Result<std::shared_ptr<const Reducer>> reducer = MakeReducer(spec);
  if (!reducer.ok()) return reducer.status();
  const uint64_t rows = 1024;
  auto rank = std::make_shared<LoneRank>(**reducer, rows, input->size() / rows);
  return Case{spec, input,
              [rank](const Vector& x, Vector* output) { return rank->Call(x, output); }};
}

double Nanoseconds(const std::function<void()>& body) {
  const Time start = SystemClock().Now();
  body();
  return static_cast<double>(SystemClock().Now() - start);
}

}  // namespace

Status PrintReducers(uint64_t count) {
  const Vector gradient = Gradient(count), sparse = Sparse(count), equal(count, -1.0f);
  Vector output(count);
  std::vector<Case> cases = {
      Selection("exact", SelectorKind::kExact, &gradient),
      Selection("exact, 0.5 % not zero", SelectorKind::kExact, &sparse),
      Selection("exact, all equal", SelectorKind::kExact, &equal),
      Selection("sampled", SelectorKind::kSampled, &gradient),
      Selection("sidco", SelectorKind::kSidco, &gradient),
  };
  const std::pair<const char*, const Vector*> calls[] = {
      {"topk:k=0.01", &gradient},
      {"topk:k=0.01,momentum=0.9", &gradient},
      {"topk:k=0.01,select=sampled", &gradient},
      {"topk:k=0.01,select=sidco", &gradient},
      {"clt_k:k=0.01", &gradient},
      {"random_k:k=0.01", &gradient},
      {"powersgd:rank=4", &gradient},
      {"count_sketch", &sparse},
  };
  for (const auto& [spec, input] : calls) {
    Result<Case> made = WholeCall(spec, input);
    if (!made.ok()) return made.status();
    cases.push_back(*std::move(made));
  }
  PrintOut("{} elements, k = {}, medians of {} turns\n", count, kShare, kTurns);
  PrintOut("{:<28} {:>12} {:>12} {:>8}\n", "selection or call", "ns/element", "copy", "speed");
  for (const Case& each : cases) {
    std::vector<double> times, copies, speeds;
    for (int turn = -1; turn < kTurns; ++turn) {  // the first one warms up
      const double copy = Nanoseconds(
          [&] { std::memcpy(output.data(), each.input->data(), count * sizeof(float)); });
      Status status;
      const double time = Nanoseconds([&] { status = each.run(*each.input, &output); });
      if (!status.ok()) return status;
      if (turn < 0) continue;
      times.push_back(time / static_cast<double>(count));
      copies.push_back(copy / static_cast<double>(count));
      speeds.push_back(copy / time);
    }
    PrintOut("{:<28} {:>12.3f} {:>12.3f} {:>8.2f}\n", each.name, Median(times), Median(copies),
             Median(speeds));
    std::fflush(stdout);
  }
  return Status::Ok();
}

}  // namespace inccl::perf
