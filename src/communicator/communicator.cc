// SPDX-License-Identifier: Apache-2.0
#include "communicator/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/fault_point.h"
#include "base/log.h"
#include "compress/identity_codec.h"
#include "topology/processors.h"
#include "tuning/segmentation.h"

namespace inccl {
namespace {

constexpr size_t kCodecsKept = 16;
constexpr Time kDisconnectLimit = 100 * kMillisecond;
constexpr size_t kCopiesOfAStep = 2;  // of a slice in memory of a device, on the host: in and out
constexpr Time kCauseLimit = 200 * kMillisecond;

// A rank that shares its core gives it away at once: whoever it waits for may need it.
WaitPolicy PolicyFor(const std::vector<pid_t>& pids) {
  WaitPolicy policy;
  if (!EnoughCores(pids)) policy.spins = 0;
  return policy;
}

std::shared_ptr<const std::string> NextLabel(int rank, int nranks) {
  static std::atomic<uint64_t> count{0};
  return std::make_shared<const std::string>(
      fmt::format("communicator {} (rank {}/{})", ++count, rank, nranks));
}

}  // namespace

Communicator::Communicator(CommEnds ends, CommOptions options)
    : ends_(std::move(ends)),
      options_(std::move(options)),
      label_(NextLabel(ends_.rank, ends_.nranks)),
      shrink_agreement_(ends_.rank, ends_.nranks, ends_.peer_names),
      liveness_({.rank = ends_.rank,
                 .nranks = ends_.nranks,
                 .peer_names = ends_.peer_names,
                 .op_timeout = options_.op_timeout,
                 .comm_name = options_.name,
                 .abort_on_error = options_.abort_on_error},
                ends_.transport->wakeup_event(), &shrink_agreement_),
      task_(&engine_),
      progress_(ends_.transport.get(), &SystemClock(), PolicyFor(ends_.pids)),
      plans_({.rank = ends_.rank,
              .nranks = ends_.nranks,
              .channels = options_.channels,
              .slice_bytes = options_.slice_bytes},
             ends_.transport.get()),
      zero_copy_(ends_.rank, ends_.nranks, options_.slice_bytes, ends_.transport.get()),
      engines_(ends_.transport.get(),
               {.with_kernels = kCopiesOfAStep * options_.slice_bytes,
                .without = (static_cast<size_t>(ends_.nranks) + 1) * options_.slice_bytes}),
      worker_([this](const Batch& batch) { return RunBatch(batch); },
              [this](const StreamOrder& turn, Time stalled) { return GivesUp(turn, stalled); }) {
  // Which kernels this CPU takes is found out at the first question, by instructions that are slow
  // on virtual machines: not in the first call.
  (void)StateOf(IdentityCodec())->Begin({.nranks = ends_.nranks, .rank = ends_.rank, .count = 1});
}

Communicator::~Communicator() {
  worker_.WaitIdle();
  FAULT_RANK(ends_.rank);
  FAULT_POINT("destroy.begin");
  liveness_.WaitNotified();
  if (control_ != nullptr) control_->Close(SystemClock().Now() + kDisconnectLimit);
  FAULT_POINT("destroy.after_goodbye");
  ends_.transport->Quiesce(SystemClock().Now() + kSecond);
}

void Communicator::AttachControl(std::unique_ptr<ControlPlane> control) {
  control_ = std::move(control);
  shrink_agreement_.Attach(control_.get());
  liveness_.Attach(control_.get());
}

void Communicator::Abort(const Status& why) {
  liveness_.EndOnPurpose(why);
  { const MutexLock lock(&call_mutex_); }
  worker_.WaitIdle();
}

void Communicator::AbortAll(const Status& why) {
  shrink_agreement_.Cancel(why);
  Abort(why);
}

Status Communicator::CauseOf(const Status& status) const {
  if (status.code() == Code::kRemoteError) liveness_.WaitFailed(kCauseLimit);
  return liveness_.failed() ? liveness_.error() : status;
}

bool Communicator::GivesUp(const StreamOrder& turn, Time stalled) {
  if (!liveness_.failed() && stalled >= options_.op_timeout) {
    liveness_.Fail(CatchOutOfMemory([&] {
      return TimeoutError(fmt::format(
          "{} waited {} ms (limit {} ms) for its turn on a stream: before it comes {}", *label_,
          stalled / kMillisecond, options_.op_timeout / kMillisecond, turn.Before()));
    }));
  }
  return liveness_.failed();
}

void Communicator::Revoke() {
  liveness_.EndOnPurpose(CatchOutOfMemory(
      [&] { return RemoteError(fmt::format("{} revoked the communicator", rank_name())); }));
}

Status Communicator::Run(const Call& call) {
  if (!worker_.idle()) {
    return MakeSticky(CatchOutOfMemory([&] {
      Batch batch;
      batch.calls.push_back(call);
      return EnqueueAndWait(std::move(batch));
    }));
  }
  if (!call_mutex_.TryLock()) return InAnotherCall();
  const MutexLock lock(&call_mutex_, std::adopt_lock);
  return RunGuarded(call);
}

Status Communicator::RunSendRecv(const std::vector<SendRecvCall>& calls) {
  if (!worker_.idle()) {
    return MakeSticky(CatchOutOfMemory([&] {
      Batch batch;
      batch.send_recv = calls;
      return EnqueueAndWait(std::move(batch));
    }));
  }
  if (!call_mutex_.TryLock()) return InAnotherCall();
  const MutexLock lock(&call_mutex_, std::adopt_lock);
  return RunSendRecvGuarded(calls);
}

Status Communicator::RunBatch(const Batch& batch) {
  const MutexLock lock(&call_mutex_);
  Status first;
  if (!batch.send_recv.empty()) first = RunSendRecvGuarded(batch.send_recv);
  for (const Call& call : batch.calls) {
    Status status = RunGuarded(call);
    if (first.ok()) first = std::move(status);
  }
  return first;
}

Status Communicator::EnqueueAndWait(Batch batch) {
  batch.completion = std::make_shared<Completion>();
  batch.completion->Add();
  const std::shared_ptr<Completion> completion = batch.completion;
  if (Status status = Enqueue(std::move(batch)); !status.ok()) return status;
  return completion->Wait();
}

Status Communicator::InAnotherCall() const {
  // Then the other call is on its way out, or is an abort.
  if (liveness_.failed()) return liveness_.error();
  return InvalidArgument(fmt::format(
      "comm: {} is in another call; a communicator takes one thread at a time", rank_name()));
}

Status Communicator::MakeSticky(const Status& status) {
  if (status.ok() || status.code() == Code::kInvalidArgument) return status;
  // What a peer's memory shows may come before what the peer says of the cause.
  if (status.code() == Code::kRemoteError) liveness_.WaitFailed(kCauseLimit);
  liveness_.Fail(status);
  if (options_.abort_on_error) liveness_.WaitNotified();  // who has found it ends the process
  return liveness_.error();                               // should it have come from elsewhere
}

Status Communicator::RunGuarded(const Call& call) {
  if (liveness_.failed()) return liveness_.error();
  FAULT_RANK(ends_.rank);
  FAULT_POINT("call.before_begin");
  zero_copy_.Begin();
  // Whatever goes wrong here, the others have to hear of it.
  Status status = MakeSticky(CatchOutOfMemory([&] {
    if (call.on_device) return RunOnDevice(call);
    if (options_.preserve_input) SaveInput(call);
    return RunLocked(call, nullptr);
  }));
  FAULT_POINT("call.after_finish");
  // The others know by now, and the stream waits until nothing touches its memory any more.
  if (!status.ok() && call.on_device) {
    (void)CatchOutOfMemory([&] {
      engines_.Drain();
      return Status::Ok();
    });
  }
  liveness_.EndCall();
  if (status.ok()) {
    completed_.store(sequence_, std::memory_order_relaxed);
  } else if (status.code() != Code::kInvalidArgument) {
    zero_copy_.RevokeAccess();
    if (options_.preserve_input && !call.on_device) RestoreInput(call);
  }
  return status;
}

Status Communicator::RunSendRecvGuarded(const std::vector<SendRecvCall>& calls) {
  if (liveness_.failed()) return liveness_.error();
  FAULT_RANK(ends_.rank);
  FAULT_POINT("call.before_begin");
  liveness_.BeginSendRecv(&calls);
  Status status = MakeSticky(CatchOutOfMemory([&] {
    if (LogEnabled(LogLevel::kInfo, LogSubsystem::kCollectives)) {
      Log(LogLevel::kInfo, LogSubsystem::kCollectives, "{} after op {}: {}", rank_name(), sequence_,
          SendRecvRequest::Describe(calls));
    }
    if (std::none_of(calls.begin(), calls.end(),
                     [](const SendRecvCall& c) { return c.on_device; })) {
      return MoveSendRecv(calls);
    }
    Result<std::vector<SendRecvCall>> staged = staging_.CopyIn(calls);
    if (!staged.ok()) return staged.status();
    if (Status moved = MoveSendRecv(*staged); !moved.ok()) return moved;
    return staging_.CopyOut(calls);
  }));
  FAULT_POINT("call.after_finish");
  liveness_.EndCall();
  return status;
}

Status Communicator::MoveSendRecv(const std::vector<SendRecvCall>& calls) {
  if (send_recv_ == nullptr) {
    send_recv_ =
        std::make_unique<SendRecvRequest>(ends_.rank, ends_.nranks, SlotsFor(options_.slice_bytes));
  }
  uint64_t sent = 0;
  bool receives = false;
  for (const SendRecvCall& call : calls) {
    if (call.peer == ends_.rank) continue;
    if (call.is_send) sent += call.count * SizeOf(call.type);
    receives = receives || !call.is_send;
  }
  // A rank that only sends is done when the slots have it all, which says nothing of its readers.
  StorePolicy::Choice way;
  const bool in_place = ends_.transport->caps().read_in_place;
  if (in_place && receives) {
    way = send_recv_stores_.Choose(sent, false);
  } else {
    way.non_temporal = in_place && send_recv_stores_.NonTemporal(sent);
  }
  Status status = send_recv_->Start(
      calls, {.slots = way.non_temporal, .results = options_.nt_store_bytes}, plans_.lanes());
  if (!status.ok() || send_recv_->done()) return status;
  const Time start = SystemClock().Now();
  status = progress_.Run(send_recv_.get(), &liveness_);
  if (in_place && receives) send_recv_stores_.Learn(sent, false, way, SystemClock().Now() - start);
  return status;
}

// In place the result's lines are in the caches already, as the input's.
bool Communicator::Streams(const Call& call) const {
  const size_t bytes = call.count * SizeOf(call.type);
  const bool many = call.collective == Collective::kAllGather ||
                    call.collective == Collective::kAllToAll ||
                    call.collective == Collective::kGather;
  return bytes * static_cast<size_t>(many ? ends_.nranks : 1) >= options_.nt_store_bytes &&
         InPlace(call, ends_.rank).empty();
}

// Where another core reads the slots themselves. Direct algorithms keep no partial sums, which this
// core would read again.
bool Communicator::CanStreamPayloads(Algorithm algorithm) const {
  return TraitsOf(algorithm).zero_copy && ends_.transport->caps().read_in_place;
}

void Communicator::SaveInput(const Call& call) {
  input_saved_ = false;  // but an earlier call's, until all is done
  const std::span<std::byte> memory = InPlace(call, ends_.rank);
  saved_input_.assign(memory.begin(), memory.end());
  input_saved_ = true;
}

void Communicator::RestoreInput(const Call& call) const {
  if (!input_saved_) return;  // nothing has been written either
  std::copy(saved_input_.begin(), saved_input_.end(), InPlace(call, ends_.rank).begin());
}

Status Communicator::SettleCodec(Call* call, bool* below_min_bytes) const {
  const Status unsupported =
      call->codec->Supports(call->collective, call->type, call->op, std::max(2, ends_.nranks));
  *below_min_bytes =
      unsupported.ok() && call->count * SizeOf(call->type) < call->codec->min_bytes();
  if (!unsupported.ok() || *below_min_bytes || call->codec == IdentityCodec()) {
    call->codec = nullptr;
    call->seed = call->step = 0;
    return Status::Ok();
  }
  if (call->step == 0) call->step = compressed_calls_;
  return ends_.nranks > 1 ? call->codec->Fits(call->collective, ends_.nranks) : Status::Ok();
}

Status Communicator::RunLocked(const Call& call, Engine* engine) {
  if (call.scalar_at == nullptr && call.codec == nullptr) return RunSettled(call, engine, false);
  Call settled = call;
  if (call.scalar_at != nullptr) {
    std::memcpy(settled.scalar.data(), call.scalar_at, SizeOf(call.type));
  }
  bool below_min_bytes = false;
  if (call.codec != nullptr) {
    if (Status unfit = SettleCodec(&settled, &below_min_bytes); !unfit.ok()) return unfit;
  }
  return RunSettled(settled, engine, below_min_bytes);
}

TunerCall Communicator::Tuned(const Call& call, bool below_min_bytes) const {
  const bool compresses = call.codec != nullptr && ends_.nranks > 1;
  return {.collective = call.collective,
          .bytes = call.count * SizeOf(call.type),
          .nranks = ends_.nranks,
          .compressed = compresses,
          .reproducible = options_.reproducible,
          .route = compresses ? call.codec->route() : Route{},
          .below_min_bytes = below_min_bytes};
}

Status Communicator::RunSettled(const Call& call, Engine* engine, bool below_min_bytes) {
  const size_t element = SizeOf(call.type);
  // A codec's state changes its plan from call to call.
  const bool users = call.purpose == Purpose::kUser;
  const bool kept = call.codec == nullptr && !below_min_bytes && users;
  const PlanCache::Plan* plan = kept ? plans_.Find(call) : nullptr;
  Choice choice;
  if (plan != nullptr) {
    choice = plan->choice;
  } else {
    // The library's own calls, and those of one rank alone, run whatever the user admits.
    Result<Choice> chosen = Choose(
        Tuned(call, below_min_bytes),
        users && ends_.nranks > 1 ? options_.algorithms : AlgorithmFilter(), options_.tuner_table);
    if (!chosen.ok()) return chosen.status();
    choice = *chosen;
  }

  uint64_t signature = 0;
  if (Status status = liveness_.BeginCall(++sequence_, call, &signature); !status.ok()) {
    return status;
  }
  if (LogEnabled(LogLevel::kInfo, LogSubsystem::kCollectives) ||
      LogEnabled(LogLevel::kInfo, LogSubsystem::kTuning)) {
    LogCall(call, Tuned(call, below_min_bytes), choice);
  }
  FAULT_POINT("call.after_begin");
  if (call.compressed_call) ++compressed_calls_;
  if (ends_.nranks == 1) return RunAlone(call);
  const std::shared_ptr<const Codec>& codec = call.codec == nullptr ? IdentityCodec() : call.codec;
  CodecState* state = StateOf(codec);
  const uint64_t bytes = call.count * element;
  const bool can_stream = engine == nullptr && CanStreamPayloads(choice.algorithm);
  const bool one_way = HasRoot(call.collective);
  const bool segmented = SegmentsOf(call.collective, 2) > 1;
  const uint64_t moved = bytes * (segmented ? static_cast<uint64_t>(ends_.nranks) : 1);
  StorePolicy& slot_writes = slot_writes_[static_cast<size_t>(call.collective)];
  const StorePolicy::Choice way =
      can_stream ? slot_writes.Choose(moved, one_way) : StorePolicy::Choice{};
  Status status = state->Begin({.collective = call.collective,
                                .type = call.type,
                                .op = call.op,
                                .scalar = call.scalar,
                                .nranks = ends_.nranks,
                                .rank = ends_.rank,
                                .count = call.count,
                                .seed = call.seed,
                                .step = call.step,
                                .stream = engine == nullptr && Streams(call),
                                .stream_payloads = way.non_temporal});
  if (!status.ok()) return status;
  PlanCache::Plan unkept;
  if (plan == nullptr) {
    Result<PlanCache::Plan> made = plans_.Make(call, *codec, choice);
    if (!made.ok()) return made.status();
    plan = kept ? plans_.Keep(*made) : &(unkept = *made);
  }
  const Result<Engine*> for_host = engine == nullptr ? engines_.ForHost() : engine;
  if (!for_host.ok()) return for_host.status();
  if (engine == nullptr) {
    zero_copy_.Begin(call, choice.algorithm);
  } else {
    zero_copy_.BeginOnDevice(call, choice.algorithm);
  }
  FAULT_POINT("call.after_bind");
  task_.Start({.program = plan->program,
               .chunking = plan->chunking,
               .codec = state,
               .engine = engine != nullptr ? engine : *for_host,
               .element_bytes = element,
               .input = static_cast<const std::byte*>(call.send),
               .output = static_cast<std::byte*>(call.recv),
               .signature = signature,
               .registered_input = zero_copy_.input(),
               .registered_output = zero_copy_.output(),
               .registered_result = zero_copy_.result(),
               .until_read = way.until_read});
  // Calls with zero copy hardly use slots.
  const bool learns = can_stream && StorePolicy::Learns(moved) && !zero_copy_.any();
  const Time start = learns ? SystemClock().Now() : 0;
  status = progress_.Run(&task_, &liveness_);
  if (learns) slot_writes.Learn(moved, one_way, way, SystemClock().Now() - start);
  FAULT_POINT("call.before_finish");
  CodecStats codec_stats;
  state->Finish(&codec_stats);
  if (status.ok()) FillStats(call, codec_stats, call.codec != nullptr);
  return status;
}

void Communicator::LogCall(const Call& call, const TunerCall& tuned, const Choice& choice) const {
  CallRecord record;
  record.Set(sequence_, call);
  const std::string where = fmt::format("{} op {}", rank_name(), sequence_);
  Log(LogLevel::kInfo, LogSubsystem::kCollectives, "{} {}: algorithm {}, codec {}", where,
      record.ToString(), ends_.nranks == 1 ? "none" : Name(choice.algorithm), record.codec);
  if (ends_.nranks == 1) return;  // nothing was chosen
  Log(LogLevel::kInfo, LogSubsystem::kTuning, "{} {} of {} bytes takes {}", where,
      Name(call.collective), tuned.bytes, Explain(tuned, choice));
}

CodecState* Communicator::StateOf(const std::shared_ptr<const Codec>& codec) {
  for (CodecUse& use : codecs_) {
    if (use.codec == codec) return use.state.get();
  }
  if (codecs_.size() >= kCodecsKept) {
    std::erase_if(codecs_, [](const CodecUse& use) { return use.codec.use_count() == 1; });
  }
  codecs_.push_back({codec, codec->NewState()});
  return codecs_.back().state.get();
}

void Communicator::FillStats(const Call& call, const CodecStats& codec_stats,
                             bool compressed) const {
  if (call.stats == nullptr) return;
  const RequestStats task = ends_.nranks == 1 ? RequestStats{} : task_.stats();
  ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
  stats.elements = call.count;
  stats.payload_bytes = task.payload_bytes;
  stats.wire_bytes = task.payload_bytes + task.slices * kHeaderBytes;
  const double raw_elements =
      static_cast<double>(task.raw_bytes) / static_cast<double>(SizeOf(call.type));
  const auto payload = static_cast<double>(task.payload_bytes);
  if (raw_elements > 0) stats.bits = 8 * payload / raw_elements;
  stats.ratio = payload > 0 ? static_cast<double>(task.raw_bytes) / payload : 1;
  stats.error_bound = codec_stats.error_bound;
  stats.zero_blocks = codec_stats.zero_blocks;
  stats.dropped_superblocks = codec_stats.dropped_superblocks;
  stats.poisoned_blocks = codec_stats.poisoned_blocks;
  stats.compressed = compressed ? 1 : 0;
  const size_t caller_size = call.stats->size;
  std::memcpy(call.stats, &stats, std::min(caller_size, sizeof stats));
  call.stats->size = caller_size;
}

}  // namespace inccl
