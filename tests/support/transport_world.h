// SPDX-License-Identifier: Apache-2.0
//
// Runs one body per rank over any transport: in threads, in forked processes, or serialized over
// the simulator's virtual time. The body is the same; only its way of waiting differs.
#ifndef INCCL_TESTS_SUPPORT_TRANSPORT_WORLD_H_
#define INCCL_TESTS_SUPPORT_TRANSPORT_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "transport/transport.h"

namespace inccl::test {

// What a body has. Its methods throw std::runtime_error on an error, at the deadline of a wait, and
// if a wake-up was lost, which fails the test; the text names the lane for which the rank waits.
class RankContext {
 public:
  RankContext(int r, int n, Transport* t, uint64_t seed)
      : rank(r), nranks(n), transport(t), rng(seed) {}
  virtual ~RankContext() = default;

  const int rank;
  const int nranks;
  Transport* const transport;
  Rng rng;

  // Polls, with Progress before each poll, and sleeps in between until `poll` is true.
  void WaitUntil(const std::function<bool()>& poll);
  // One Progress.
  virtual void Progress() = 0;

  std::unique_ptr<SendLane> OpenSend(const LaneSpec& spec);
  std::unique_ptr<RecvLane> OpenRecv(const LaneSpec& spec);
  bool CanAcquire(SendLane* lane);
  bool CanPeek(RecvLane* lane);
  Span Acquire(SendLane* lane);             // waits
  RecvLane::Incoming Peek(RecvLane* lane);  // waits
  void Publish(SendLane* lane, const SliceHeader& header);
  void Release(RecvLane* lane);
  // A slice without payload, sent and awaited: `lane` as a semaphore.
  void Signal(SendLane* lane);
  void Await(RecvLane* lane);

 protected:
  virtual void Wait(const std::function<bool()>& poll) = 0;

 private:
  // The lane at which the wait in progress has looked last.
  const LaneSpec* looked_at_ = nullptr;
  const char* looked_for_ = "";
};

enum class WorldKind {
  kLoopback,
  kShmThreads,
  kShmProcesses,
  kSim,
  kSimUnicast,     // without multicast
  kLink,           // an emulated link over loopback
  kLinkProcesses,  // over shm
  kLinkSim,        // over the simulator, in virtual time
  kUcxThreads,
  kUcxProcesses,
  kUcxTcp,          // between processes, over UCX's TCP
  kUcxBlind,        // threads that UCX cannot wake
  kTcpThreads,      // without protection
  kTcpProcesses,    // with authenticated frames
  kTcpEncrypted,    // threads, with two sockets per pair
  kTcpOnDemand,     // threads, two sockets per pair that connect at the first lane
  kVerbs,           // threads, over devices that do everything at once
  kVerbsThread,     // threads, over devices that do it in a thread of their own
  kVerbsProcesses,  // over the machine's devices
  // shm between ranks of one host, ucx between hosts.
  kCompositeThreads,    // hosts of two neighbours: 0,1 | 2,3 | 4
  kCompositeProcesses,  // two hosts in turn: 0,2,4 | 1,3
};
// Those that this build has; with INCCL_TEST_RDMA in the environment, those over the machine's RDMA
// devices alone.
std::vector<WorldKind> AllWorlds();
const char* Name(WorldKind kind);
// Creates the transports of `nranks` ranks and runs body for each; each rank's end is destroyed
// when its body returns. EXPECT and ASSERT work in bodies.
void RunRanks(WorldKind kind, int nranks, uint64_t seed,
              const std::function<void(RankContext&)>& body);

// Open descriptors of this process.
int CountFds();
// Names in /dev/shm; which there are besides those of before. Others use the directory, too: waits
// so long for theirs to go.
std::set<std::string> ShmNames();
std::string NewShmNames(const std::set<std::string>& before, double seconds);

}  // namespace inccl::test

#endif  // INCCL_TESTS_SUPPORT_TRANSPORT_WORLD_H_
