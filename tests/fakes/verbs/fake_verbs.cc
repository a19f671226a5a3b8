// SPDX-License-Identifier: Apache-2.0
#include "fakes/verbs/fake_verbs.h"

#include <arpa/inet.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>

// verbs.h has macros of these.
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

namespace inccl::test::fake_verbs {
namespace {

// A queue that stops allocating once it has had its greatest length, and does not begin before it
// has some: tests end without memory.
template <typename T>
class Ring {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  T& front() { return items_[head_]; }
  T& operator[](size_t i) { return items_[(head_ + i) % items_.size()]; }
  void pop_front() {
    head_ = (head_ + 1) % items_.size();
    --size_;
  }
  void push_back(const T& item) {
    if (size_ == items_.size()) {
      std::rotate(items_.begin(), items_.begin() + static_cast<ptrdiff_t>(head_), items_.end());
      head_ = 0;
      items_.resize(2 * size_ + 16);
    }
    items_[(head_ + size_++) % items_.size()] = item;
  }
  void clear() { size_ = 0; }

 private:
  std::vector<T> items_ = std::vector<T>(64);
  size_t head_ = 0, size_ = 0;
};

struct FakeDevice {
  ibv_device base{};
  DeviceModel model;
};
struct FakeChannel {
  ibv_comp_channel base{};
};
enum class Armed { kNo, kSolicited, kAll };
struct FakeCq {
  ibv_cq base{};
  Ring<ibv_wc> entries;
  Armed armed = Armed::kNo;
  bool overflowed = false;
  unsigned int events = 0, acknowledged = 0;
};
struct FakeSrq {
  ibv_srq base{};
  Ring<uint64_t> receives;
  uint32_t most = 0;
};
struct Work {
  uint64_t id = 0;
  bool signaled = false, solicited = false, with_immediate = false;
  uint32_t immediate = 0;
  uint64_t remote = 0;
  uint32_t key = 0;
  struct Piece {
    const std::byte* data = nullptr;
    uint32_t bytes = 0, key = 0;
  };
  std::array<Piece, 2> pieces{};
  uint32_t bytes = 0;  // of all pieces
};
struct FakeQp {
  ibv_qp base{};
  Connection connection;
  Ring<Work> queue;        // not carried out
  Ring<ibv_wc> to_report;  // carried out; completions that are still to come
  uint32_t most = 0, most_pieces = 0, outstanding = 0;
  bool held = false;
};
struct FakeMr {
  ibv_mr base{};
  int access = 0;
  const std::byte* mapped = nullptr;  // of a dma-buf: where its pages are here
};

Gid FromText(const char* text, ibv_gid_type type) {
  Gid gid{.bytes = {}, .type = type};
  inet_pton(AF_INET6, text, gid.bytes.data());
  return gid;
}

Machine Standard() {
  Port port;
  port.gids = {FromText("fe80::1", IBV_GID_TYPE_ROCE_V1), FromText("fe80::1", IBV_GID_TYPE_ROCE_V2),
               FromText("::ffff:192.0.2.1", IBV_GID_TYPE_ROCE_V1),
               FromText("::ffff:192.0.2.1", IBV_GID_TYPE_ROCE_V2)};
  Machine machine;
  machine.devices = {{.name = "fake0", .ports = {port}}};
  return machine;
}

struct Fabric {
  std::mutex mutex;
  std::condition_variable work;
  Machine machine = Standard();
  std::vector<std::unique_ptr<FakeDevice>> devices;
  std::map<uint32_t, FakeQp*> pairs;
  std::vector<FakeQp*> busy;  // has room for all, because tests end without memory
  std::map<uint32_t, FakeMr*> regions;
  std::map<ibv_context*, int> domains;  // of each context
  uint32_t next_number = 100, next_key = 1000;
  uint64_t locked = 0, objects = 0;
  Counters counters;
  std::optional<ibv_wc_status> fail_send, fail_credit;
  std::optional<uint32_t> flip;
  uint8_t flip_bits = 0;
  int fail_post = 0;
  std::mt19937_64 random{1};
  std::thread thread;
  bool stop = false;
};
void MakeDevices(Fabric* f);
Fabric& fabric() {
  static auto* const made = [] {
    auto* const fabric = new Fabric;
    MakeDevices(fabric);
    return fabric;
  }();
  return *made;
}
using Lock = std::unique_lock<std::mutex>;

[[noreturn]] void Misuse(const char* what) {
  std::fprintf(stderr, "fake libibverbs: %s\n", what);
  std::abort();
}

template <typename Fake, typename Base>
Fake* Of(Base* base) {
  return reinterpret_cast<Fake*>(base);
}

void Report(FakeCq* cq, const ibv_wc& entry, bool solicited) {
  if (cq->entries.size() >= static_cast<size_t>(cq->base.cqe)) cq->overflowed = true;
  cq->entries.push_back(entry);
  const bool rings = cq->armed == Armed::kAll || (cq->armed == Armed::kSolicited &&
                                                  (solicited || entry.status != IBV_WC_SUCCESS));
  if (!rings) return;
  cq->armed = Armed::kNo;
  ++cq->events;
  ++fabric().counters.events;
  const uint64_t one = 1;
  if (write(cq->base.channel->fd, &one, sizeof one) != sizeof one) Misuse("an event is lost");
}

ibv_wc Completion(const FakeQp& qp, uint64_t id, ibv_wc_status status) {
  ibv_wc entry{};
  entry.wr_id = id;
  entry.status = status;
  entry.opcode = IBV_WC_RDMA_WRITE;
  entry.qp_num = qp.base.qp_num;
  return entry;
}

void ReportSends(FakeQp* qp, size_t most) {
  for (; most > 0 && !qp->to_report.empty(); --most) {
    Report(Of<FakeCq>(qp->base.send_cq), qp->to_report.front(), false);
    qp->to_report.pop_front();
  }
}

void Break(FakeQp* qp, uint64_t id, ibv_wc_status status) {
  qp->connection.state = IBV_QPS_ERR;
  qp->to_report.push_back(Completion(*qp, id, status));
  for (size_t i = 0; i < qp->queue.size(); ++i) {
    qp->to_report.push_back(Completion(*qp, qp->queue[i].id, IBV_WC_WR_FLUSH_ERR));
  }
  qp->queue.clear();
  ReportSends(qp, SIZE_MAX);
}

const Port& PortOf(const FakeQp& qp) {
  const auto& model = Of<FakeDevice>(qp.base.context->device)->model;
  return model.ports.at(qp.connection.to_receive.ah_attr.port_num - 1u);
}
bool PortIsUp(const FakeQp& qp) { return PortOf(qp).state == IBV_PORT_ACTIVE; }

// The network, or the other end, drops packets without a word.
bool PacketsPass(const FakeQp& from, const FakeQp& to, uint32_t bytes) {
  const Port &source = PortOf(from), &target = PortOf(to);
  const uint32_t packet = std::min(bytes, 128u << from.connection.to_receive.path_mtu);
  return source.pkey == target.pkey && source.network == target.network && source.network >= 0 &&
         packet <= fabric().machine.largest_packet;
}

bool Covers(const FakeMr& mr, uint64_t address, uint64_t bytes) {
  const auto begin = reinterpret_cast<uint64_t>(mr.base.addr);
  return address >= begin && address + bytes <= begin + mr.base.length;
}

// Where a device finds the bytes of a piece that is not empty; nullptr: it may not read them.
const std::byte* Read(const FakeQp& qp, const Work::Piece& piece) {
  const auto region = fabric().regions.find(piece.key);
  if (region == fabric().regions.end() || region->second->base.pd != qp.base.pd ||
      !Covers(*region->second, reinterpret_cast<uint64_t>(piece.data), piece.bytes)) {
    return nullptr;
  }
  const FakeMr& mr = *region->second;
  if (mr.mapped == nullptr) return piece.data;
  return mr.mapped + (piece.data - static_cast<const std::byte*>(mr.base.addr));
}

enum class Outcome { kDone, kWait };

// The first work request of a queue pair that is ready to send.
Outcome CarryOut(FakeQp* qp) {
  Fabric& f = fabric();
  const Work work = qp->queue.front();
  const auto found = f.pairs.find(qp->connection.peer);
  FakeQp* const peer = found == f.pairs.end() ? nullptr : found->second;
  if (qp->held || (peer != nullptr && peer->connection.state == IBV_QPS_INIT)) {
    return Outcome::kWait;
  }
  qp->queue.pop_front();
  std::optional<ibv_wc_status>& planned = work.bytes > 0 ? f.fail_send : f.fail_credit;
  if (planned) {
    Break(qp, work.id, *planned);
    planned.reset();
    return Outcome::kDone;
  }
  if (peer == nullptr || peer->connection.state == IBV_QPS_ERR ||
      peer->connection.peer != qp->base.qp_num || !PortIsUp(*qp) || !PortIsUp(*peer) ||
      !PacketsPass(*qp, *peer, work.bytes)) {
    Break(qp, work.id, IBV_WC_RETRY_EXC_ERR);
    return Outcome::kDone;
  }
  if (peer->connection.to_receive.rq_psn != qp->connection.to_send.sq_psn) {
    Misuse("the two ends do not agree on the first packet's number");
  }
  if (peer->connection.to_receive.path_mtu != qp->connection.to_receive.path_mtu) {
    Misuse("the two ends do not agree on the MTU");
  }
  auto* const srq = Of<FakeSrq>(peer->base.srq);
  if (work.with_immediate && srq->receives.empty()) {
    ++f.counters.not_ready;
    Break(qp, work.id, IBV_WC_RNR_RETRY_EXC_ERR);
    return Outcome::kDone;
  }
  if (work.bytes > 0) {
    const auto region = f.regions.find(work.key);
    const FakeMr* const mr = region == f.regions.end() ? nullptr : region->second;
    const uint64_t begin = mr == nullptr ? 0 : reinterpret_cast<uint64_t>(mr->base.addr);
    if (mr == nullptr || mr->base.pd->context->device != peer->base.context->device ||
        (mr->access & IBV_ACCESS_REMOTE_WRITE) == 0 || work.remote < begin ||
        work.remote + work.bytes > begin + mr->base.length) {
      Break(qp, work.id, IBV_WC_REM_ACCESS_ERR);
      return Outcome::kDone;
    }
    // A device reads the memory only now.
    for (const Work::Piece& piece : work.pieces) {
      if (piece.bytes == 0 || Read(*qp, piece) != nullptr) continue;
      ++f.counters.stale;
      Break(qp, work.id, IBV_WC_LOC_PROT_ERR);
      return Outcome::kDone;
    }
    auto* to = reinterpret_cast<std::byte*>(work.remote);
    for (const Work::Piece& piece : work.pieces) {
      if (piece.bytes > 0) std::memcpy(to, Read(*qp, piece), piece.bytes);
      to += piece.bytes;
    }
    to = reinterpret_cast<std::byte*>(work.remote);
    if (f.flip && *f.flip < work.bytes) {
      reinterpret_cast<uint8_t*>(to)[*f.flip] ^= f.flip_bits;
      f.flip.reset();
    }
    f.counters.bytes += work.bytes;
  }
  if (work.with_immediate) {
    ibv_wc entry{};
    entry.wr_id = srq->receives.front();
    srq->receives.pop_front();
    entry.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    entry.byte_len = work.bytes;
    entry.imm_data = work.immediate;
    entry.qp_num = peer->base.qp_num;
    entry.wc_flags = IBV_WC_WITH_IMM;
    Report(Of<FakeCq>(peer->base.recv_cq), entry, work.solicited);
  }
  if (work.signaled) qp->to_report.push_back(Completion(*qp, work.id, IBV_WC_SUCCESS));
  if (!f.machine.in_thread) ReportSends(qp, SIZE_MAX);
  return Outcome::kDone;
}

// A random step of a random queue pair. Returns false if there is none.
bool Step() {
  Fabric& f = fabric();
  std::vector<FakeQp*>& busy = f.busy;
  busy.clear();
  for (const auto& [number, qp] : f.pairs) {
    if (!qp->queue.empty() || !qp->to_report.empty()) busy.push_back(qp);
  }
  std::shuffle(busy.begin(), busy.end(), f.random);
  for (FakeQp* const qp : busy) {
    const bool reports = !qp->to_report.empty() && (qp->queue.empty() || f.random() % 2 == 0);
    if (reports) {
      ReportSends(qp, 1 + f.random() % 3);
      return true;
    }
    if (!qp->queue.empty() && CarryOut(qp) == Outcome::kDone) return true;
  }
  return false;
}

void RunThread() {
  Fabric& f = fabric();
  Lock lock(f.mutex);
  while (!f.stop) {
    if (!Step()) f.work.wait(lock);
    if (f.random() % 8 == 0) {
      lock.unlock();
      sched_yield();
      lock.lock();
    }
  }
}

void RunPair(FakeQp* qp) {
  while (!qp->queue.empty() && CarryOut(qp) == Outcome::kDone) {
  }
}

// What waited for a peer or a hold goes on.
void RunAll() {
  Fabric& f = fabric();
  f.work.notify_one();
  if (f.machine.in_thread) return;
  f.busy.clear();
  for (const auto& [number, qp] : f.pairs) f.busy.push_back(qp);
  for (FakeQp* const qp : f.busy) RunPair(qp);
}

int PostSend(ibv_qp* base, ibv_send_wr* wr, ibv_send_wr** bad) {
  Fabric& f = fabric();
  const Lock lock(f.mutex);
  auto* const qp = Of<FakeQp>(base);
  for (; wr != nullptr; wr = wr->next) {
    *bad = wr;
    if (f.fail_post != 0) return std::exchange(f.fail_post, 0);
    const ibv_qp_state state = qp->connection.state;
    if (state != IBV_QPS_RTS && state != IBV_QPS_ERR) return EINVAL;
    if (qp->outstanding >= qp->most) return ENOMEM;
    if (wr->opcode != IBV_WR_RDMA_WRITE && wr->opcode != IBV_WR_RDMA_WRITE_WITH_IMM) return EINVAL;
    Work work{.id = wr->wr_id,
              .signaled = (wr->send_flags & IBV_SEND_SIGNALED) != 0,
              .solicited = (wr->send_flags & IBV_SEND_SOLICITED) != 0,
              .with_immediate = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM,
              .immediate = wr->imm_data,
              .remote = wr->wr.rdma.remote_addr,
              .key = wr->wr.rdma.rkey};
    if (static_cast<uint32_t>(wr->num_sge) > qp->most_pieces) return EINVAL;
    for (int i = 0; i < wr->num_sge; ++i) {
      const ibv_sge& piece = wr->sg_list[i];
      if (piece.length == 0) return EINVAL;  // devices would take it for 2^31
      work.pieces.at(static_cast<size_t>(i)) = {reinterpret_cast<const std::byte*>(piece.addr),
                                                piece.length, piece.lkey};
      work.bytes += piece.length;
      if (Read(*qp, work.pieces.at(static_cast<size_t>(i))) == nullptr) return EFAULT;
    }
    if (wr->num_sge > 1) ++f.counters.gathered;
    if (!work.signaled) return EINVAL;  // this stand-in does not free what is not signalled
    ++(work.bytes > 0 ? f.counters.sends : f.counters.credits);
    ++qp->outstanding;
    if (state == IBV_QPS_ERR) {
      Report(Of<FakeCq>(qp->base.send_cq), Completion(*qp, work.id, IBV_WC_WR_FLUSH_ERR), false);
      continue;
    }
    qp->queue.push_back(work);
  }
  if (f.machine.in_thread) {
    f.work.notify_one();
  } else {
    RunPair(qp);
  }
  return 0;
}

int PollCq(ibv_cq* base, int most, ibv_wc* entries) {
  Fabric& f = fabric();
  const Lock lock(f.mutex);
  auto* const cq = Of<FakeCq>(base);
  if (cq->overflowed) return -1;
  int count = 0;
  for (; count < most && !cq->entries.empty(); ++count) {
    const ibv_wc entry = cq->entries.front();
    cq->entries.pop_front();
    entries[count] = entry;
    if (entry.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
      ++f.counters.messages;
      continue;
    }
    ++f.counters.send_completions;
    const auto qp = f.pairs.find(entry.qp_num);
    if (qp != f.pairs.end()) --qp->second->outstanding;
  }
  return count;
}

int ReqNotifyCq(ibv_cq* base, int solicited_only) {
  const Lock lock(fabric().mutex);
  auto* const cq = Of<FakeCq>(base);
  if (cq->armed != Armed::kAll) cq->armed = solicited_only != 0 ? Armed::kSolicited : Armed::kAll;
  return 0;
}

int PostSrqRecv(ibv_srq* base, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  Fabric& f = fabric();
  const Lock lock(f.mutex);
  auto* const srq = Of<FakeSrq>(base);
  for (; wr != nullptr; wr = wr->next) {
    *bad = wr;
    if (wr->num_sge != 0) return EINVAL;
    if (srq->receives.size() >= srq->most) return ENOMEM;
    srq->receives.push_back(wr->wr_id);
    ++f.counters.receives;
  }
  return 0;
}

template <typename Fake>
auto* Made(Fake* fake) {
  ++fabric().objects;
  return &fake->base;
}
template <typename Fake, typename Base>
int Destroyed(Base* base) {
  --fabric().objects;
  delete Of<Fake>(base);
  return 0;
}

void MakeDevices(Fabric* f) {
  f->devices.clear();
  for (const DeviceModel& model : f->machine.devices) {
    auto device = std::make_unique<FakeDevice>();
    device->model = model;
    std::snprintf(device->base.name, sizeof device->base.name, "%s", model.name.c_str());
    std::snprintf(device->base.ibdev_path, sizeof device->base.ibdev_path, "%s",
                  model.path.c_str());
    f->devices.push_back(std::move(device));
  }
}

class TheControl final : public Control {
 public:
  Machine StandardMachine() const override { return Standard(); }
  void SetMachine(const Machine& machine) override;
  void SetPortState(const std::string& device, int port, ibv_port_state state) override;
  void SetLockableBytes(uint64_t bytes) override;
  Counters Count() const override;
  void ResetCounters() override;
  uint64_t LockedBytes() const override;
  uint64_t OpenObjects() const override;
  std::vector<Connection> Connections() const override;
  void FailNextSend(ibv_wc_status status, bool credits) override;
  void FailNextPost(int error) override;
  void FlipNextWrite(uint32_t offset, uint8_t bits) override;
  void TakeReceives() override;
  void Hold(uint32_t number, bool hold) override;
  void Inject(uint32_t number, uint32_t immediate, uint32_t bytes) override;
};

void TheControl::SetMachine(const Machine& machine) {
  Fabric& f = fabric();
  std::thread old;
  {
    const Lock lock(f.mutex);
    if (f.objects != 0) Misuse("a device is open");
    f.stop = true;
    f.work.notify_one();
    old = std::move(f.thread);
  }
  if (old.joinable()) old.join();
  const Lock lock(f.mutex);
  f.stop = false;
  f.machine = machine;
  f.counters = {};
  f.random.seed(machine.seed);
  f.fail_send.reset();
  f.fail_credit.reset();
  f.flip.reset();
  f.fail_post = 0;
  MakeDevices(&f);
  if (machine.in_thread) f.thread = std::thread(RunThread);
}

void TheControl::SetPortState(const std::string& device, int port, ibv_port_state state) {
  Fabric& f = fabric();
  const Lock lock(f.mutex);
  for (const auto& fake : f.devices) {
    if (fake->model.name == device)
      fake->model.ports.at(static_cast<size_t>(port) - 1).state = state;
  }
}
void TheControl::SetLockableBytes(uint64_t bytes) {
  const Lock lock(fabric().mutex);
  fabric().machine.lockable_bytes = bytes;
}
Counters TheControl::Count() const {
  const Lock lock(fabric().mutex);
  return fabric().counters;
}
void TheControl::ResetCounters() {
  const Lock lock(fabric().mutex);
  fabric().counters = {};
}
uint64_t TheControl::LockedBytes() const {
  const Lock lock(fabric().mutex);
  return fabric().locked;
}
uint64_t TheControl::OpenObjects() const {
  const Lock lock(fabric().mutex);
  return fabric().objects;
}
std::vector<Connection> TheControl::Connections() const {
  const Lock lock(fabric().mutex);
  std::vector<Connection> all;
  for (const auto& [number, qp] : fabric().pairs) all.push_back(qp->connection);
  return all;
}
void TheControl::FailNextSend(ibv_wc_status status, bool credits) {
  const Lock lock(fabric().mutex);
  (credits ? fabric().fail_credit : fabric().fail_send) = status;
}
void TheControl::FailNextPost(int error) {
  const Lock lock(fabric().mutex);
  fabric().fail_post = error;
}
void TheControl::FlipNextWrite(uint32_t offset, uint8_t bits) {
  const Lock lock(fabric().mutex);
  fabric().flip = offset;
  fabric().flip_bits = bits;
}
void TheControl::TakeReceives() {
  const Lock lock(fabric().mutex);
  for (const auto& [number, qp] : fabric().pairs) Of<FakeSrq>(qp->base.srq)->receives.clear();
}
void TheControl::Hold(uint32_t number, bool hold) {
  const Lock lock(fabric().mutex);
  fabric().pairs.at(number)->held = hold;
  RunAll();
}
void TheControl::Inject(uint32_t number, uint32_t immediate, uint32_t bytes) {
  const Lock lock(fabric().mutex);
  FakeQp* const qp = fabric().pairs.at(number);
  ibv_wc entry{};
  entry.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  entry.byte_len = bytes;
  entry.imm_data = htonl(immediate);
  entry.qp_num = number;
  entry.wc_flags = IBV_WC_WITH_IMM;
  Report(Of<FakeCq>(qp->base.recv_cq), entry, true);
}

}  // namespace
}  // namespace inccl::test::fake_verbs

using namespace inccl::test::fake_verbs;  // NOLINT(google-build-using-namespace)

extern "C" {

Control* inccl_fake_verbs() {
  static TheControl control;
  return &control;
}

ibv_device** ibv_get_device_list(int* count) {
  Fabric& f = fabric();
  const Lock lock(f.mutex);
  auto** const list = new ibv_device*[f.devices.size() + 1]();
  for (size_t i = 0; i < f.devices.size(); ++i) list[i] = &f.devices[i]->base;
  *count = static_cast<int>(f.devices.size());
  return list;
}
void ibv_free_device_list(ibv_device** list) { delete[] list; }
const char* ibv_get_device_name(ibv_device* device) { return device->name; }

ibv_context* ibv_open_device(ibv_device* device) {
  const Lock lock(fabric().mutex);
  auto* const context = new ibv_context{};
  context->device = device;
  context->ops.post_send = PostSend;
  context->ops.poll_cq = PollCq;
  context->ops.req_notify_cq = ReqNotifyCq;
  context->ops.post_srq_recv = PostSrqRecv;
  ++fabric().objects;
  return context;
}
int ibv_close_device(ibv_context* context) {
  const Lock lock(fabric().mutex);
  if (fabric().domains[context] != 0) Misuse("a device is closed that has a protection domain");
  fabric().domains.erase(context);
  --fabric().objects;
  delete context;
  return 0;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
  const Lock lock(fabric().mutex);
  const Machine& machine = fabric().machine;
  *attributes = {};
  attributes->phys_port_cnt =
      static_cast<uint8_t>(Of<FakeDevice>(context->device)->model.ports.size());
  attributes->max_qp_wr = machine.max_qp_wr;
  attributes->max_srq_wr = machine.max_srq_wr;
  attributes->max_cqe = machine.max_cqe;
  return 0;
}

int ibv_query_port(ibv_context* context, uint8_t number, _compat_ibv_port_attr* out) {
  const Lock lock(fabric().mutex);
  const auto& ports = Of<FakeDevice>(context->device)->model.ports;
  if (number == 0 || number > ports.size()) return EINVAL;
  const Port& port = ports[number - 1u];
  auto* const attributes = reinterpret_cast<ibv_port_attr*>(out);
  attributes->state = port.state;
  attributes->active_mtu = port.mtu;
  attributes->max_mtu = IBV_MTU_4096;
  attributes->gid_tbl_len = static_cast<int>(port.gids.size()) + 2;  // the last ones are empty
  attributes->lid = port.lid;
  attributes->active_width = 2;  // 4 lanes
  attributes->active_speed = port.speed;
  attributes->link_layer =
      static_cast<uint8_t>(port.ethernet ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND);
  return 0;
}

int _ibv_query_gid_ex(ibv_context* context, uint32_t number, uint32_t index, ibv_gid_entry* entry,
                      uint32_t /*flags*/, size_t /*size*/) {
  const Lock lock(fabric().mutex);
  const Port& port = Of<FakeDevice>(context->device)->model.ports.at(number - 1);
  if (index >= port.gids.size()) return ENODATA;
  const Gid& gid = port.gids[index];
  *entry = {};
  std::memcpy(entry->gid.raw, gid.bytes.data(), gid.bytes.size());
  entry->gid_index = index;
  entry->port_num = number;
  entry->gid_type = gid.type;
  return 0;
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  const Lock lock(fabric().mutex);
  auto* const pd = new ibv_pd{};
  pd->context = context;
  ++fabric().domains[context];
  ++fabric().objects;
  return pd;
}
int ibv_dealloc_pd(ibv_pd* pd) {
  const Lock lock(fabric().mutex);
  --fabric().domains[pd->context];
  --fabric().objects;
  delete pd;
  return 0;
}

namespace {

ibv_mr* MakeMr(ibv_pd* pd, void* address, size_t length, int access, const std::byte* mapped) {
  Fabric& f = fabric();
  auto* const mr = new FakeMr;
  mr->mapped = mapped;
  mr->access = access;
  mr->base.context = pd->context;
  mr->base.pd = pd;
  mr->base.addr = address;
  mr->base.length = length;
  mr->base.lkey = mr->base.rkey = f.next_key++;
  f.regions[mr->base.rkey] = mr;
  return Made(mr);
}

}  // namespace

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  Fabric& f = fabric();
  const Lock lock(f.mutex);
  if (f.locked + length > f.machine.lockable_bytes) {
    errno = ENOMEM;
    return nullptr;
  }
  f.locked += length;
  return MakeMr(pd, address, length, access, nullptr);
}
// Its address is one that only a device would reach; whole pages, as mlx5 wants them.
ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd,
                          int access) {
  const Lock lock(fabric().mutex);
  const bool pages = offset % 4096 == 0 && length % 4096 == 0 && iova % 4096 == 0;
  void* const mapped =
      !fabric().machine.dma_bufs || !pages || access != 0
          ? MAP_FAILED
          : mmap(nullptr, length, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) {
    errno = !fabric().machine.dma_bufs ? EOPNOTSUPP : fd < 0 ? EBADF : EINVAL;
    return nullptr;
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the address that work requests name
  return MakeMr(pd, reinterpret_cast<void*>(iova), length, access,
                static_cast<const std::byte*>(mapped));
}
int ibv_dereg_mr(ibv_mr* mr) {
  Fabric& f = fabric();
  const Lock lock(f.mutex);
  if (const std::byte* const mapped = Of<FakeMr>(mr)->mapped; mapped != nullptr) {
    munmap(const_cast<std::byte*>(mapped), mr->length);
  } else {
    f.locked -= mr->length;
  }
  f.regions.erase(mr->rkey);
  return Destroyed<FakeMr>(mr);
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  const Lock lock(fabric().mutex);
  auto* const channel = new FakeChannel;
  channel->base.context = context;
  channel->base.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  return Made(channel);
}
int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  const Lock lock(fabric().mutex);
  close(channel->fd);
  return Destroyed<FakeChannel>(channel);
}

ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* user, ibv_comp_channel* channel, int) {
  const Lock lock(fabric().mutex);
  auto* const cq = new FakeCq;
  cq->base.context = context;
  cq->base.channel = channel;
  cq->base.cq_context = user;
  cq->base.cqe = cqe;
  return Made(cq);
}
int ibv_destroy_cq(ibv_cq* base) {
  const Lock lock(fabric().mutex);
  if (Of<FakeCq>(base)->acknowledged > Of<FakeCq>(base)->events) Misuse("too many acknowledged");
  return Destroyed<FakeCq>(base);
}
int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** /*cq*/, void** /*user*/) {
  uint64_t count = 0;
  return read(channel->fd, &count, sizeof count) == sizeof count ? 0 : -1;
}
void ibv_ack_cq_events(ibv_cq* base, unsigned int events) {
  const Lock lock(fabric().mutex);
  Of<FakeCq>(base)->acknowledged += events;
}

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attributes) {
  const Lock lock(fabric().mutex);
  auto* const srq = new FakeSrq;
  srq->base.context = pd->context;
  srq->base.pd = pd;
  srq->most = attributes->attr.max_wr;
  return Made(srq);
}
int ibv_destroy_srq(ibv_srq* srq) {
  const Lock lock(fabric().mutex);
  return Destroyed<FakeSrq>(srq);
}

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  Fabric& f = fabric();
  const Lock lock(f.mutex);
  auto* const qp = new FakeQp;
  qp->base.context = pd->context;
  qp->base.pd = pd;
  qp->base.send_cq = init->send_cq;
  qp->base.recv_cq = init->recv_cq;
  qp->base.srq = init->srq;
  qp->base.qp_num = qp->connection.number = f.next_number++;
  qp->connection.device = pd->context->device->name;
  qp->most = init->cap.max_send_wr;
  qp->most_pieces = std::min(init->cap.max_send_sge, 2u);
  f.pairs[qp->base.qp_num] = qp;
  f.busy.reserve(f.pairs.size());
  return Made(qp);
}

int ibv_modify_qp(ibv_qp* base, ibv_qp_attr* attributes, int mask) {
  const Lock lock(fabric().mutex);
  auto* const qp = Of<FakeQp>(base);
  if ((mask & IBV_QP_STATE) == 0) return EINVAL;
  const ibv_qp_state from = qp->connection.state, to = attributes->qp_state;
  if (to == IBV_QPS_INIT && from == IBV_QPS_RESET) {
    if (attributes->qp_access_flags != IBV_ACCESS_REMOTE_WRITE) return EINVAL;
  } else if (to == IBV_QPS_RTR && from == IBV_QPS_INIT) {
    qp->connection.to_receive = *attributes;
    qp->connection.peer = attributes->dest_qp_num;
  } else if (to == IBV_QPS_RTS && from == IBV_QPS_RTR) {
    qp->connection.to_send = *attributes;
  } else if (to == IBV_QPS_ERR) {
    qp->connection.state = to;
    for (size_t i = 0; i < qp->queue.size(); ++i) {
      qp->to_report.push_back(Completion(*qp, qp->queue[i].id, IBV_WC_WR_FLUSH_ERR));
    }
    qp->queue.clear();
    ReportSends(qp, SIZE_MAX);
  } else {
    return EINVAL;
  }
  qp->connection.state = to;
  RunAll();
  return 0;
}
int ibv_destroy_qp(ibv_qp* qp) {
  const Lock lock(fabric().mutex);
  fabric().pairs.erase(qp->qp_num);
  RunAll();
  return Destroyed<FakeQp>(qp);
}

const char* ibv_wc_status_str(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_LOC_LEN_ERR: return "local length error";
    case IBV_WC_LOC_QP_OP_ERR: return "local QP operation error";
    case IBV_WC_LOC_PROT_ERR: return "local protection error";
    case IBV_WC_RETRY_EXC_ERR: return "transport retry counter exceeded";
    case IBV_WC_RNR_RETRY_EXC_ERR: return "RNR retry counter exceeded";
    case IBV_WC_REM_ACCESS_ERR: return "remote access error";
    case IBV_WC_WR_FLUSH_ERR: return "Work Request Flushed Error";
    default: return "another error";
  }
}

}  // extern "C"
