// SPDX-License-Identifier: Apache-2.0
#include "base/fault_point.h"

#if !defined(INCCL_NO_FAULT_POINTS)

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"

namespace inccl::fault {
namespace internal {

std::atomic<bool> armed{false};
thread_local constinit int rank = -1;

}  // namespace internal

namespace {

// Keeps replaced plans, because a thread may still read one. Never destroyed, because threads may
// run while the process exits.
struct State {
  Mutex mutex;
  std::vector<std::unique_ptr<const Plan>> plans INCCL_GUARDED_BY(mutex);
  std::string text INCCL_GUARDED_BY(mutex);  // of INCCL_TEST_FAULT
  std::atomic<const Plan*> current{nullptr};
  std::array<std::atomic<uint64_t>, kPointCount> hits{};
  std::atomic<uint64_t> all_hits{0};
};

State& Get() {
  static NoDestructor<State> state;
  return *state;
}

bool ParseNumber(std::string_view text, int64_t most, int64_t* number) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && stop == end && *number >= 0 && *number <= most;
}

bool ParseAction(std::string_view text, Plan* plan) {
  constexpr std::string_view kDelayWord = "delay:";
  if (text == "kill") return plan->action = Action::kKill, true;
  if (text == "stop") return plan->action = Action::kStop, true;
  if (text == "exit") return plan->action = Action::kExit, true;
  if (text == "count") return plan->action = Action::kCount, true;
  int64_t delay = 0;
  if (!text.starts_with(kDelayWord) ||
      !ParseNumber(text.substr(kDelayWord.size()), 3600 * 1000, &delay)) {
    return false;
  }
  plan->action = Action::kDelay;
  plan->delay_ms = static_cast<int>(delay);
  return true;
}

bool ParseField(std::string_view key, std::string_view value, Plan* plan) {
  int64_t number = 0;
  if (key == "rank") {
    if (!ParseNumber(value, 1 << 20, &number)) return false;
    plan->rank = static_cast<int>(number);
    return true;
  }
  if (key == "hit") {
    if (!ParseNumber(value, INT64_MAX, &number)) return false;
    plan->hit = static_cast<uint64_t>(number);
    return true;
  }
  if (key == "point") {
    plan->point = IndexOf(value);
    return plan->point != kNoPoint || value == "*";
  }
  return key == "action" && ParseAction(value, plan);
}

void Act(const Plan& plan) {
  switch (plan.action) {
    case Action::kCount: return;
    case Action::kKill:
      kill(getpid(), SIGKILL);
      while (true) pause();
    case Action::kStop: kill(getpid(), SIGSTOP); return;
    case Action::kExit: std::exit(0);
    case Action::kDelay:
      std::this_thread::sleep_for(std::chrono::milliseconds(plan.delay_ms));
      return;
    case Action::kCall: plan.call(); return;
  }
}

}  // namespace

namespace internal {

void Reach(size_t point) {
  State& state = Get();
  const Plan* const plan = state.current.load(std::memory_order_acquire);
  if (plan == nullptr || (plan->rank >= 0 && plan->rank != rank)) return;
  const uint64_t here = state.hits[point].fetch_add(1) + 1;
  const uint64_t anywhere = state.all_hits.fetch_add(1) + 1;
  if (plan->point != kNoPoint && plan->point != point) return;
  if (plan->hit == 0 || plan->hit == (plan->point == kNoPoint ? anywhere : here)) Act(*plan);
}

}  // namespace internal

Result<Plan> ParsePlan(std::string_view text) {
  Plan plan;
  bool has_point = false, has_action = false;
  while (true) {
    const std::string_view field = text.substr(0, text.find(';'));
    const size_t equals = field.find('=');
    const std::string_view key = field.substr(0, equals);
    if (equals == std::string_view::npos || !ParseField(key, field.substr(equals + 1), &plan)) {
      return InvalidArgument(
          fmt::format("INCCL_TEST_FAULT: \"{}\" is not rank=N, point=NAME, hit=N or "
                      "action=kill|stop|exit|count|delay:MS",
                      field));
    }
    has_point |= key == "point";
    has_action |= key == "action";
    if (field.size() == text.size()) break;
    text.remove_prefix(field.size() + 1);
  }
  if (!has_point || !has_action) {
    return InvalidArgument("INCCL_TEST_FAULT: point and action must be given");
  }
  return plan;
}

void Arm(Plan plan) {
  State& state = Get();
  const MutexLock lock(&state.mutex);
  state.plans.push_back(std::make_unique<const Plan>(std::move(plan)));
  for (std::atomic<uint64_t>& hits : state.hits) hits.store(0);
  state.all_hits.store(0);
  state.current.store(state.plans.back().get(), std::memory_order_release);
  internal::armed.store(true);
}

void Disarm() {
  internal::armed.store(false);
  Get().current.store(nullptr);
}

Status ArmFromEnvironment() {
  const char* const value = secure_getenv("INCCL_TEST_FAULT");
  const std::string text = value == nullptr ? "" : value;
  {
    State& state = Get();
    const MutexLock lock(&state.mutex);
    if (text == state.text) return Status::Ok();
    state.text = text;
  }
  if (text.empty()) {
    Disarm();
    return Status::Ok();
  }
  Result<Plan> plan = ParsePlan(text);
  if (!plan.ok()) return plan.status();
  Arm(*std::move(plan));
  return Status::Ok();
}

uint64_t Hits(size_t point) { return Get().hits[point].load(); }

}  // namespace inccl::fault

#endif  // INCCL_NO_FAULT_POINTS
