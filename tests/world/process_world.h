// SPDX-License-Identifier: Apache-2.0
//
// One body in n processes: what each of them reported, how it ended, what it printed and whether it
// left anything behind. A process that still runs at the deadline has its stacks written down and
// is killed. Uses the public API only, and no thread, so that forking stays harmless.
#ifndef INCCL_TESTS_WORLD_PROCESS_WORLD_H_
#define INCCL_TESTS_WORLD_PROCESS_WORLD_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "inccl/ccl.h"
#include "world/limits.h"

namespace inccl::test {

// A rank's report. In shared memory: what a killed rank had reported is there too.
struct Report {
  static constexpr size_t kCounters = 64;

  std::atomic<int> stage{0};  // the body's own count of how far it has come
  std::atomic<int> result{-1};
  std::atomic<double> seconds{0};  // of the last call
  std::atomic<uint64_t> calls{0};  // that succeeded
  std::atomic<uint64_t> counters[kCounters]{};
  ccl_unique_id_t id{};  // what this rank has made for others, before its next stage
  char text[3000]{};
  char left_behind[500]{};  // what the baseline found

  void SetText(const char* value);
};

struct RankEnd {
  pid_t pid = -1;
  int status = -1;         // as waitpid gives it
  bool timed_out = false;  // killed by the world
  std::string output;      // stdout and stderr, and the stacks if it timed out

  bool Exited(int code = 0) const;
  bool Killed(int signal) const;
  std::string Describe() const;
};

using ProcessExit = RankEnd;

class ProcessWorld;

// A rank's view, inside its process.
class Side {
 public:
  Side(ProcessWorld* world, int rank) : world_(world), rank_(rank) {}
  int rank() const { return rank_; }
  int nranks() const;
  Report& mine() const { return of(rank_); }
  Report& of(int rank) const;
  // The unique id: made by the first that asks among those that may, awaited by the others. Exits
  // the process if none comes.
  ccl_unique_id_t Id() const;
  // Joins with `config`; the result and its text become the report.
  ccl_result_t Init(ccl_comm_t* comm, const ccl_config_t& config) const;
  // Waits until a rank has reached a stage. False: it did not in time.
  bool Await(int rank, int stage, double seconds = 20.0 * Slowness()) const;

 private:
  ProcessWorld* const world_;
  const int rank_;
};

struct WorldOptions {
  int nranks = 2;
  double deadline_seconds = 30.0 * Slowness();
  int id_maker = 0;      // the rank that makes the id; or kOutside
  bool baseline = true;  // each rank ends with what it began with
  // Called first in each rank's process, to move it elsewhere (Hosts::Ranks). The rank exits with
  // 97 if a text is returned.
  std::function<std::string(int rank)> enter = {};
};
inline constexpr int kOutside = -1;  // the world's own process gives the id

class ProcessWorld {
 public:
  // What the body returns is the exit code; 1 if an expectation failed in it, 98 if it left
  // something behind, 99 if memory leaked (address sanitizer).
  using Body = std::function<int(const Side&)>;

  ProcessWorld(const WorldOptions& options, const Body& body);
  ~ProcessWorld();  // kills who is left
  ProcessWorld(const ProcessWorld&) = delete;
  ProcessWorld& operator=(const ProcessWorld&) = delete;

  int nranks() const { return options_.nranks; }
  pid_t pid(int rank) const { return ends_[static_cast<size_t>(rank)].pid; }
  Report& report(int rank) const;
  Side side(int rank) { return {this, rank}; }
  // With id_maker kOutside.
  void GiveId(const ccl_unique_id_t& id);
  void Kill(int rank, int signal) const;
  bool Running(int rank);

  // Looks who has ended; true when all have. Kills at the deadline.
  bool Poll();
  // Until all have ended.
  const std::vector<RankEnd>& Wait();
  // All have exited with 0, or are one of `but`.
  void ExpectAllExited(const std::vector<int>& but = {});

 private:
  friend class Side;
  struct Shared;

  void RunChild(int rank, const Body& body);
  void Finish(int rank);
  void DumpStacks(int rank);

  const WorldOptions options_;
  const pid_t parent_;
  const size_t parent_threads_;
  Shared* shared_ = nullptr;
  size_t shared_bytes_ = 0;
  double started_ = 0;
  std::vector<RankEnd> ends_;
  std::vector<int> output_fds_;
  std::vector<bool> running_;
};

// Runs `count` worlds, `parallel` at a time: start(i) makes one, check(i, world) sees it when all
// of its ranks have ended.
void RunWorlds(size_t count, size_t parallel,
               const std::function<std::unique_ptr<ProcessWorld>(size_t)>& start,
               const std::function<void(size_t, ProcessWorld&)>& check);

}  // namespace inccl::test

#endif  // INCCL_TESTS_WORLD_PROCESS_WORLD_H_
