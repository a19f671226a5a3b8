// SPDX-License-Identifier: Apache-2.0
//
// Plans of fault points: their text, whom and what they hit, and that nothing happens without
// one.
#include "base/fault_point.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <set>
#include <string>
#include <thread>

#if !defined(INCCL_NO_FAULT_POINTS)

namespace inccl::test {
namespace {

constexpr size_t kBegin = fault::IndexOf("init.begin");

void Pass() { FAULT_POINT("init.begin"); }

// The status of a child that arms `text` and passes the point `times` times.
int ChildStatus(const std::string& text, int times) {
  const pid_t pid = fork();
  if (pid == 0) {
    Result<fault::Plan> plan = fault::ParsePlan(text);
    if (!plan.ok()) _exit(3);
    fault::Arm(*plan);
    for (int i = 0; i < times; ++i) Pass();
    _exit(7);
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, WUNTRACED), pid);
  if (WIFSTOPPED(status)) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  return status;
}

TEST(FaultPointTest, NamesAreUnique) {
  const std::set<std::string_view> names(std::begin(fault::kPoints), std::end(fault::kPoints));
  EXPECT_EQ(names.size(), fault::kPointCount);
  EXPECT_EQ(fault::IndexOf("no such point"), fault::kNoPoint);
}

TEST(FaultPointTest, PlansAreReadOrRefused) {
  const Result<fault::Plan> plan =
      fault::ParsePlan("rank=1;point=shm.after_attach;hit=3;action=delay:50");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->rank, 1);
  EXPECT_EQ(plan->point, fault::IndexOf("shm.after_attach"));
  EXPECT_EQ(plan->hit, 3u);
  EXPECT_EQ(plan->action, fault::Action::kDelay);
  EXPECT_EQ(plan->delay_ms, 50);
  ASSERT_TRUE(fault::ParsePlan("point=*;action=kill").ok());
  for (const char* bad :
       {"", "point=init.begin", "action=kill", "point=nowhere;action=kill",
        "point=init.begin;action=maim", "point=init.begin;action=delay:x",
        "point=init.begin;action=kill;hit=-1", "point=init.begin;action=kill;rank=x",
        "point=init.begin;action=kill;color=red", "point=init.begin;action=kill;"}) {
    EXPECT_EQ(fault::ParsePlan(bad).status().code(), Code::kInvalidArgument) << bad;
  }
}

TEST(FaultPointTest, ActionsHappenAtTheRightArrival) {
  EXPECT_EQ(WEXITSTATUS(ChildStatus("point=init.begin;action=count", 5)), 7);
  int status = ChildStatus("point=init.begin;hit=3;action=kill", 2);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  status = ChildStatus("point=init.begin;hit=3;action=kill", 3);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  status = ChildStatus("point=*;hit=2;action=kill", 2);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  status = ChildStatus("point=init.begin;action=stop", 1);
  EXPECT_TRUE(WIFSTOPPED(status));
  status = ChildStatus("point=init.begin;action=exit", 1);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  status = ChildStatus("point=call.after_begin;action=kill", 5);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

TEST(FaultPointTest, OnlyTheThreadsOfTheRankCount) {
  int calls = 0;
  fault::Plan plan;
  plan.rank = 2;
  plan.point = kBegin;
  plan.hit = 0;
  plan.action = fault::Action::kCall;
  plan.call = [&] { ++calls; };
  fault::Arm(plan);
  Pass();
  {
    FAULT_RANK(1);
    Pass();
  }
  EXPECT_EQ(calls, 0);
  {
    FAULT_RANK(2);
    Pass();
    std::thread(Pass).join();
    Pass();
  }
  Pass();
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(fault::Hits(kBegin), 2u);
  fault::Disarm();
  FAULT_RANK(2);
  Pass();
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(fault::Hits(kBegin), 2u);
}

TEST(FaultPointTest, DelaysDelay) {
  Result<fault::Plan> plan = fault::ParsePlan("point=init.begin;hit=0;action=delay:20");
  ASSERT_TRUE(plan.ok());
  fault::Arm(*plan);
  const auto start = std::chrono::steady_clock::now();
  Pass();
  Pass();
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(40));
  fault::Disarm();
}

TEST(FaultPointTest, TheEnvironmentArmsOnceAndDisarms) {
  setenv("INCCL_TEST_FAULT", "point=init.begin;hit=0;action=count", 1);
  ASSERT_TRUE(fault::ArmFromEnvironment().ok());
  Pass();
  ASSERT_TRUE(fault::ArmFromEnvironment().ok());
  Pass();
  EXPECT_EQ(fault::Hits(kBegin), 2u) << "the same text must not start anew";
  setenv("INCCL_TEST_FAULT", "nonsense", 1);
  EXPECT_EQ(fault::ArmFromEnvironment().code(), Code::kInvalidArgument);
  unsetenv("INCCL_TEST_FAULT");
  ASSERT_TRUE(fault::ArmFromEnvironment().ok());
  Pass();
  EXPECT_EQ(fault::Hits(kBegin), 2u);
}

}  // namespace
}  // namespace inccl::test

#endif  // INCCL_NO_FAULT_POINTS
