// SPDX-License-Identifier: Apache-2.0
//
// Stands in for libibverbs: RDMA devices inside this process, whose queue pairs write to each
// other's memory. Any thread may call the methods of Control.
#ifndef INCCL_TESTS_FAKES_VERBS_FAKE_VERBS_H_
#define INCCL_TESTS_FAKES_VERBS_FAKE_VERBS_H_

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace inccl::test::fake_verbs {

struct Gid {
  std::array<uint8_t, 16> bytes{};
  ibv_gid_type type = IBV_GID_TYPE_ROCE_V2;
};
struct Port {
  ibv_port_state state = IBV_PORT_ACTIVE;
  bool ethernet = true;
  ibv_mtu mtu = IBV_MTU_1024;
  uint16_t lid = 0;
  std::vector<Gid> gids;
  uint8_t speed = 64;      // ibv_port_attr::active_speed: 64 is 50 Gbit/s a lane, 32 is 25
  uint16_t pkey = 0xffff;  // the first of its table; ports with others do not hear this one
  int network = 0;         // nor do those of other networks; -1: what it sends is lost
};
struct DeviceModel {
  std::string name;
  std::vector<Port> ports;
  std::string path{};  // of the device in sysfs; <path>/device/numa_node has its NUMA node
};

struct Machine {
  std::vector<DeviceModel> devices;
  uint64_t lockable_bytes = UINT64_MAX;  // more registered memory is ENOMEM
  uint32_t largest_packet = UINT32_MAX;  // larger ones are lost: an MTU that a switch does not have
  int max_qp_wr = 1024, max_srq_wr = 32768, max_cqe = 1 << 20;
  // A thread carries out work requests and completes them, in random order of the queue pairs; else
  // ibv_post_send does.
  bool in_thread = false;
  bool dma_bufs = true;  // false: the driver registers none
  uint64_t seed = 1;
};
struct Counters {
  uint64_t sends = 0, credits = 0;              // work requests with and without bytes
  uint64_t send_completions = 0, messages = 0;  // polled
  uint64_t receives = 0;                        // posted
  uint64_t not_ready = 0;                       // messages that found no receive
  uint64_t events = 0;                          // of completion channels
  uint64_t bytes = 0;                           // written to peers
  uint64_t gathered = 0;                        // work requests with two pieces
  uint64_t stale = 0;  // work requests whose memory was not registered any more
};

// What ibv_modify_qp was told of a queue pair that still exists.
struct Connection {
  std::string device{};
  uint32_t number = 0, peer = 0;
  ibv_qp_state state = IBV_QPS_RESET;
  ibv_qp_attr to_receive{}, to_send{};
};

class Control {
 public:
  virtual ~Control() = default;
  // One device, fake0, with one Ethernet port and the GIDs that a host with an IPv4 address has.
  virtual Machine StandardMachine() const = 0;
  // Replaces the machine and forgets all faults. No device is open.
  virtual void SetMachine(const Machine& machine) = 0;
  virtual void SetPortState(const std::string& device, int port, ibv_port_state state) = 0;
  virtual void SetLockableBytes(uint64_t bytes) = 0;
  virtual Counters Count() const = 0;
  virtual void ResetCounters() = 0;
  virtual uint64_t LockedBytes() const = 0;                 // registered
  virtual uint64_t OpenObjects() const = 0;                 // contexts, queues, regions, ...
  virtual std::vector<Connection> Connections() const = 0;  // in the order of their creation

  // The next work request with bytes (`credits`: without) completes so. Its queue pair fails.
  virtual void FailNextSend(ibv_wc_status status, bool credits) = 0;
  // The next call of ibv_post_send returns `error`.
  virtual void FailNextPost(int error) = 0;
  // Flips bits of what the next write writes, `offset` bytes behind its begin.
  virtual void FlipNextWrite(uint32_t offset, uint8_t bits) = 0;
  // Takes all posted receives away.
  virtual void TakeReceives() = 0;
  // Work requests of queue pair `number` wait until they are no longer held.
  virtual void Hold(uint32_t number, bool hold) = 0;
  // A message of `bytes` bytes arrives at queue pair `number`.
  virtual void Inject(uint32_t number, uint32_t immediate, uint32_t bytes) = 0;
};

// The control of the library that INCCL_TEST_IBVERBS will name, which this function sets. Not for
// other libraries to see: UCX would take the stand-in's functions for those of libibverbs.
Control& Get();

}  // namespace inccl::test::fake_verbs

#endif  // INCCL_TESTS_FAKES_VERBS_FAKE_VERBS_H_
