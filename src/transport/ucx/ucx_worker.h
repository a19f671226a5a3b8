// SPDX-License-Identifier: Apache-2.0
//
// A UCX worker with an endpoint per peer: sends, receives, detection of lost peers, and a shutdown
// in bounded time. One thread at a time.
#ifndef INCCL_TRANSPORT_UCX_UCX_WORKER_H_
#define INCCL_TRANSPORT_UCX_UCX_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transport/poll_wakeup_event.h"
#include "transport/ucx/ucx_library.h"
#include "transport/ucx/ucx_transport.h"

namespace inccl::ucx {

class Worker;

enum class Traffic : uint8_t { kSlice, kCredit };

// One message in flight. Its memory lives as long as the worker.
struct Operation {
  Worker* worker = nullptr;
  int peer = -1;  // destination of a send
  void* request = nullptr;
  bool in_flight = false;
  bool slice_out = false;  // a send of a slice
  ucs_status_t status = UCS_OK;
  size_t bytes = 0;  // received
};

class Worker {
 public:
  static Result<std::unique_ptr<Worker>> Create(int rank, int nranks, const UcxOptions& options);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  std::span<const std::byte> address() const { return address_; }
  Status Connect(int peer, std::span<const std::byte> address);
  bool connected(int peer) const { return ends_[static_cast<size_t>(peer)].ep != nullptr; }

  // The caller leaves `data` unchanged while the operation is in flight. Errors appear in the
  // operation's status and in Lost(peer).
  void Send(int peer, std::span<const std::byte> data, uint64_t tag, Traffic traffic,
            Operation* operation);
  void Receive(std::span<std::byte> data, uint64_t tag, Operation* operation);
  // Called after Close, before the memory of an operation is freed.
  void Cancel(Operation* operation);

  // Hands completions to their operations and returns their number.
  int Progress(Time now);
  // True if something has completed since the last Progress returned.
  bool has_news() const { return news_ > 0; }
  bool unsent() const { return slices_out_ > 0; }
  void AppendUnsent(std::vector<int>* ranks) const;  // appends the receivers of unsent slices

  // Returns kRemoteError some time after the peer was lost, so that its last messages and a more
  // precise report from the control connection can arrive first.
  Status Lost(int peer) const;
  // Interprets the `status` of a failed receive: true if the message was longer than its buffer,
  // false if the peer is lost.
  bool IsTruncation(int peer, ucs_status_t status);

  // The descriptor that becomes readable at the next event after Arm() returned true; -1 if UCX
  // cannot report events. Arm() returns false if there is something to do now.
  int wake_fd() const { return wake_fd_; }
  bool Arm() { return closed_ || ucx_->ucp_worker_arm(worker_) == UCS_OK; }

  // Sends what can be sent by `deadline` and cancels the rest. With `read`, also waits until that
  // returns true: the peers have read everything. Nothing is sent or received afterwards.
  void Close(Time deadline, const std::function<bool()>& read = {});

 private:
  struct End {
    Worker* worker = nullptr;
    ucp_ep_h ep = nullptr;
    ucs_status_t failure = UCS_OK;
    Time failed_at = 0;  // `now` of the Progress that saw the failure
    int in_flight = 0;   // sends
    int slices_out = 0;  // sends of slices
  };

  Worker(const Library* ucx, int rank, int nranks)
      : ucx_(ucx), rank_(rank), ends_(static_cast<size_t>(nranks)) {}
  Status Start(const UcxOptions& options);
  void Fail(End* end, ucs_status_t status);
  Status Configure(ucp_config_t* config, const std::string& tls) const;
  Status Error(const std::string& what, ucs_status_t status) const;
  void Finish(Operation* operation, ucs_status_t status);
  void Await(void* request, Time deadline);
  void TakeBack();

  static void OnSent(void* request, ucs_status_t status, void* operation);
  static void OnReceived(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                         void* operation);
  static void OnLost(void* end, ucp_ep_h ep, ucs_status_t status);

  const Library* const ucx_;
  const int rank_;
  std::vector<End> ends_;  // by rank; never resized, since UCX holds pointers into it
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int wake_fd_ = -1;
  std::vector<std::byte> address_;
  Time now_ = 0;  // argument of the last Progress
  int news_ = 0;
  int slices_out_ = 0, credits_out_ = 0;
  bool stamp_failures_ = false;  // some failures have no failed_at yet
  bool closed_ = false;
};

// Sleeps on a UCX worker. Ready arms the worker after the owner's last look; the worker refuses if
// anything has arrived since, so no wake-up is lost.
class UcxWakeupSource final : public WakeupSource {
 public:
  // `worker` outlives it.
  explicit UcxWakeupSource(Worker* worker) : worker_(worker) {}
  int fd() const override { return worker_->wake_fd(); }
  bool Ready() override;

 private:
  Worker* worker_;
  int refusals_ = 0;  // consecutive refusals of the worker to be armed
};

}  // namespace inccl::ucx

#endif  // INCCL_TRANSPORT_UCX_UCX_WORKER_H_
