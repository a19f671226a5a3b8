// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_worker.h"

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "transport/ucx/ucx_transport.h"

namespace inccl::ucx {
namespace {

// The control connection reports a dead process at once, with a more precise message.
constexpr Time kLostAfter = kSecond;
// Peers rarely need the last credits of a transport that closes.
constexpr Time kCreditsGrace = 100 * kMillisecond;
// Limit for the shutdown of endpoints, which ends earlier after kQuiet without an event.
constexpr Time kEndingLimit = 200 * kMillisecond;
constexpr Time kQuiet = 5 * kMillisecond;

constexpr std::pair<const char*, const char*> kMemorySettings[] = {
    {"ERROR_HANDLING", "y"},  // reports failures of peers; a forced close needs it
    {"HUGETLB_MODE", "n"},
    {"SEG_SIZE", "16640"},  // a fragment: 16 KiB plus headers
    {"RX_BUFS_GROW", "128"},
};

// Blocks signals while UCX may start threads, so that the application's handlers do not run there.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &old_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t old_;
};

}  // namespace

Status Worker::Error(const std::string& what, ucs_status_t status) const {
  return SystemError(
      fmt::format("rank {}: ucx: {}: {}", rank_, what, ucx_->ucs_status_string(status)));
}

Result<std::unique_ptr<Worker>> Worker::Create(int rank, int nranks, const UcxOptions& options) {
  Result<const Library*> library = Load();
  if (!library.ok()) {
    return Status(library.status().code(),
                  fmt::format("rank {}: {}", rank, library.status().message()));
  }
  std::unique_ptr<Worker> worker(new Worker(*library, rank, nranks));
  const SignalsBlocked blocked;
  if (Status status = worker->Start(options); !status.ok()) return status;
  return worker;
}

Status Worker::Configure(ucp_config_t* config, const std::string& tls) const {
  ucs_status_t status = ucx_->ucp_config_modify(config, "TLS", tls.c_str());
  if (status != UCS_OK) return Error(fmt::format("transports \"{}\"", tls), status);
  // Optional settings, which a UCX version may not know. UCX 1.13 uses the prefix MM_ for shared
  // memory, later versions use the transport's name.
  ucx_->ucp_config_modify(config, "WARN_INVALID_CONFIG", "n");
  for (const auto& [name, value] : kMemorySettings) {
    for (const char* prefix : {"MM_", "SYSV_", "POSIX_"}) {
      ucx_->ucp_config_modify(config, fmt::format("{}{}", prefix, name).c_str(), value);
    }
  }
  // No rendezvous: copies through shared memory need no handshake, and UCX's rendezvous would map
  // the sender's memory.
  if (tls == kDefaultUcxTls) ucx_->ucp_config_modify(config, "RNDV_THRESH", "inf");
  return Status::Ok();
}

Status Worker::Start(const UcxOptions& options) {
  const std::string tls = options.tls.empty() ? kDefaultUcxTls : options.tls;
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucx_->ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return Error("its configuration (UCX_ variables)", status);
  Status configured = Configure(config, tls);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
  params.features = UCP_FEATURE_TAG | (options.wake ? UCP_FEATURE_WAKEUP : 0);
  params.estimated_num_eps = ends_.size();
  if (configured.ok()) {
    status = ucx_->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  }
  ucx_->ucp_config_release(config);
  if (!configured.ok()) return configured;
  if (status != UCS_OK) {
    context_ = nullptr;
    return Error(fmt::format("no such transports on this machine: \"{}\"", tls), status);
  }
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucx_->ucp_worker_create(context_, &worker_params, &worker_);
  if (status != UCS_OK) {
    worker_ = nullptr;
    return Error(fmt::format("a worker over \"{}\"", tls), status);
  }
  if (!options.wake || ucx_->ucp_worker_get_efd(worker_, &wake_fd_) != UCS_OK) wake_fd_ = -1;
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  status = ucx_->ucp_worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) return Error("the worker's address", status);
  const auto* data = reinterpret_cast<const std::byte*>(address);
  address_.assign(data, data + bytes);
  ucx_->ucp_worker_release_address(worker_, address);
  if (bytes > kMaxUcxAddressBytes) {
    return SystemError(fmt::format("rank {}: ucx: an address of {} bytes over \"{}\", at most {}",
                                   rank_, bytes, tls, kMaxUcxAddressBytes));
  }
  return Status::Ok();
}

Worker::~Worker() {
  Close(SystemClock().Now());
  if (worker_ != nullptr) ucx_->ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucx_->ucp_cleanup(context_);
}

Status Worker::Connect(int peer, std::span<const std::byte> address) {
  End& end = ends_[static_cast<size_t>(peer)];
  end.worker = this;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = OnLost;
  params.err_handler.arg = &end;
  const SignalsBlocked blocked;
  const ucs_status_t status = ucx_->ucp_ep_create(worker_, &params, &end.ep);
  if (status == UCS_OK) return Status::Ok();
  end.ep = nullptr;
  return Error(fmt::format("peer rank {} cannot be connected to", peer), status);
}

void Worker::Finish(Operation* operation, ucs_status_t status) {
  operation->request = nullptr;
  operation->in_flight = false;
  operation->status = status;
  ++news_;
}

void Worker::OnSent(void* request, ucs_status_t status, void* user_data) {
  auto* operation = static_cast<Operation*>(user_data);
  Worker* const worker = operation->worker;
  --(operation->slice_out ? worker->slices_out_ : worker->credits_out_);
  End& end = worker->ends_[static_cast<size_t>(operation->peer)];
  --end.in_flight;
  if (operation->slice_out) --end.slices_out;
  worker->Finish(operation, status);
  worker->ucx_->ucp_request_free(request);
}

void Worker::OnReceived(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                        void* user_data) {
  auto* operation = static_cast<Operation*>(user_data);
  operation->bytes = status == UCS_OK ? info->length : 0;
  operation->worker->Finish(operation, status);
  operation->worker->ucx_->ucp_request_free(request);
}

void Worker::OnLost(void* user_data, ucp_ep_h /*ep*/, ucs_status_t status) {
  auto* end = static_cast<End*>(user_data);
  end->worker->Fail(end, status);
}

void Worker::Fail(End* end, ucs_status_t status) {
  if (end->failure != UCS_OK) return;
  end->failure = status;
  stamp_failures_ = true;
}

void Worker::Send(int peer, std::span<const std::byte> data, uint64_t tag, Traffic traffic,
                  Operation* operation) {
  End& end = ends_[static_cast<size_t>(peer)];
  operation->worker = this;
  operation->slice_out = traffic == Traffic::kSlice;
  operation->in_flight = false;
  if (end.ep == nullptr) Fail(&end, UCS_ERR_NOT_CONNECTED);
  operation->status = end.failure;
  if (end.failure != UCS_OK) return;
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.cb.send = OnSent;
  params.user_data = operation;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  void* const request = ucx_->ucp_tag_send_nbx(end.ep, data.data(), data.size(), tag, &params);
  if (request == nullptr) return;
  if (UCS_PTR_IS_ERR(request)) {
    operation->status = UCS_PTR_STATUS(request);
    Fail(&end, operation->status);
    return;
  }
  operation->request = request;
  operation->in_flight = true;
  operation->peer = peer;
  ++end.in_flight;
  if (operation->slice_out) ++end.slices_out;
  ++(operation->slice_out ? slices_out_ : credits_out_);
}

void Worker::AppendUnsent(std::vector<int>* ranks) const {
  for (size_t peer = 0; peer < ends_.size(); ++peer) {
    if (ends_[peer].slices_out > 0) ranks->push_back(static_cast<int>(peer));
  }
}

void Worker::Receive(std::span<std::byte> data, uint64_t tag, Operation* operation) {
  operation->worker = this;
  operation->slice_out = false;
  operation->status = UCS_OK;
  operation->bytes = 0;
  operation->in_flight = true;
  ucp_request_param_t params{};
  // Use the callback even for a message that has already arrived: only it reports the length.
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv = OnReceived;
  params.user_data = operation;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  void* const request =
      ucx_->ucp_tag_recv_nbx(worker_, data.data(), data.size(), tag, ~uint64_t{0}, &params);
  if (UCS_PTR_IS_ERR(request)) {
    Finish(operation, UCS_PTR_STATUS(request));
  } else if (operation->in_flight) {  // else the callback has run and freed the request
    operation->request = request;
  }
}

void Worker::Cancel(Operation* operation) {
  if (operation->in_flight) ucx_->ucp_request_cancel(worker_, operation->request);
}

int Worker::Progress(Time now) {
  if (closed_) return 0;
  now_ = now;
  const int before = std::exchange(news_, 0);
  ucx_->ucp_worker_progress(worker_);
  if (std::exchange(stamp_failures_, false)) {
    for (End& end : ends_) {
      if (end.failure != UCS_OK && end.failed_at == 0) end.failed_at = now;
    }
  }
  return before + std::exchange(news_, 0);
}

Status Worker::Lost(int peer) const {
  const End& end = ends_[static_cast<size_t>(peer)];
  if (end.failed_at == 0 || now_ - end.failed_at < kLostAfter) return Status::Ok();
  return RemoteError(fmt::format("rank {}: ucx: peer rank {} is lost: {}", rank_, peer,
                                 ucx_->ucs_status_string(end.failure)));
}

bool Worker::IsTruncation(int peer, ucs_status_t status) {
  if (status == UCS_ERR_MESSAGE_TRUNCATED) return true;
  Fail(&ends_[static_cast<size_t>(peer)], status);
  return false;
}

void Worker::Await(void* request, Time deadline) {
  if (request == nullptr || UCS_PTR_IS_ERR(request)) return;
  while (ucx_->ucp_request_check_status(request) == UCS_INPROGRESS &&
         SystemClock().Now() < deadline) {
    if (ucx_->ucp_worker_progress(worker_) == 0) sched_yield();
  }
  ucx_->ucp_request_free(request);
}

void Worker::Close(Time deadline, const std::function<bool()>& read) {
  if (closed_ || worker_ == nullptr) return;
  const auto drain = [&](const auto& pending, Time until) {
    while (pending() && SystemClock().Now() < until) {
      if (ucx_->ucp_worker_progress(worker_) == 0) sched_yield();
    }
  };
  drain([&] { return slices_out_ > 0 || (read && !read()); }, deadline);
  const Time soon = std::min(deadline, SystemClock().Now() + kCreditsGrace);
  drain([&] { return credits_out_ > 0; }, soon);
  if (read) {
    ucp_request_param_t none{};
    Await(ucx_->ucp_worker_flush_nbx(worker_, &none), soon);
  }
  TakeBack();
  closed_ = true;
}

// Forces endpoints closed that still have sends in flight. The worker's destruction ends all
// others: UCX 1.13 aborts if the worker is destroyed while a closed endpoint is still shutting
// down.
void Worker::TakeBack() {
  ucp_request_param_t force{};
  force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  force.flags = UCP_EP_CLOSE_FLAG_FORCE;
  std::vector<void*> closing;
  bool ending = false;
  for (End& end : ends_) {
    ending = ending || end.failure != UCS_OK;
    if (end.ep == nullptr || end.failure != UCS_OK || end.in_flight == 0) continue;
    closing.push_back(ucx_->ucp_ep_close_nbx(std::exchange(end.ep, nullptr), &force));
    ending = true;
  }
  if (!ending) return;
  const Time last = SystemClock().Now() + kEndingLimit;
  for (void* request : closing) Await(request, last);
  Time quiet_since = SystemClock().Now();
  for (Time now = quiet_since; now < last && now - quiet_since < kQuiet;
       now = SystemClock().Now()) {
    if (ucx_->ucp_worker_progress(worker_) != 0) quiet_since = now;
    sched_yield();
  }
}

namespace {

constexpr int kRefusals = 16;

}  // namespace

bool UcxWakeupSource::Ready() {
  if (worker_->has_news()) return false;
  if (worker_->wake_fd() >= 0 && !worker_->Arm()) {
    // Usually one Progress makes the worker accept. It refuses while something cannot be sent yet.
    if (++refusals_ > kRefusals) sched_yield();
    return false;
  }
  refusals_ = 0;
  return true;
}

}  // namespace inccl::ucx
