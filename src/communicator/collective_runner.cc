// SPDX-License-Identifier: Apache-2.0
#include "communicator/collective_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "compress/identity_codec.h"
#include "device/runtime.h"
#include "tuning/segmentation.h"

namespace inccl {
namespace {

constexpr size_t kCodecsKept = 16;

std::vector<int> OtherRanks(int rank, int nranks) {
  std::vector<int> ranks;
  for (int other = 0; other < nranks; ++other) {
    if (other != rank) ranks.push_back(other);
  }
  return ranks;
}

}  // namespace

CollectiveRunner::CollectiveRunner(Ends ends, const CommOptions* options)
    : rank_(ends.rank),
      nranks_(ends.nranks),
      name_(std::move(ends.name)),
      lineage_(*ends.lineage),
      transport_(ends.transport),
      liveness_(ends.liveness),
      engines_(ends.engines),
      options_(*options),
      hosts_(ends.hosts),
      slots_{.bytes = options_.slot_bytes_max,
             .slice_bytes = options_.slice_bytes,
             .channels = options_.channels,
             .shared_slots = transport_->caps().shared_slots,
             .under_way = transport_->caps().deep_lanes
                              ? UnderWay(options_.tuner_table.costs(), hosts_)
                              : 0},
      team_(options_.threads, ends.helpers_spin),
      executor_(&engine_),
      progress_(transport_, &SystemClock(), ends.wait),
      lanes_(transport_, hosts_),
      plans_({.slots = slots_, .hosts = hosts_, .filtered = nranks_ > 1}, options, &lanes_),
      own_plans_({.slots = slots_, .hosts = hosts_}, options, &lanes_),
      own_processor_(ends.wait.spins > 0),
      zero_copy_(rank_, nranks_, options_.slice_bytes, transport_),
      all_read_in_place_(nranks_ == 1 ||
                         transport_->CapsFor(rank_, OtherRanks(rank_, nranks_)).read_in_place) {
  // The first query of the CPU's kernels runs instructions that are slow on virtual machines, so it
  // runs here and not in the first call.
  (void)StateOf(IdentityCodec())->Begin({.nranks = nranks_, .rank = rank_, .count = 1});
  if (hosts_ != nullptr) host_sums_.emplace(rank_, hosts_);
}

Status CollectiveRunner::RunSendRecv(const std::vector<Call>& calls) {
  if (send_recv_ == nullptr) {
    send_recv_ = std::make_unique<SendRecvRequest>(
        rank_, nranks_, SlotsFor(options_.slice_bytes, slots_.under_way));
  }
  uint64_t sent = 0;
  bool receives = false, in_place = true;  // all sends are read in place
  for (const Call& call : calls) {
    if (call.peer == rank_) continue;
    if (call.kind == CallKind::kSend) {
      sent += call.bytes();
      in_place = in_place && transport_->CapsFor(rank_, {&call.peer, 1}).read_in_place;
    }
    receives = receives || call.kind != CallKind::kSend;
  }
  // A rank that only sends is done when the slots hold its data, so its time says nothing about the
  // readers.
  StorePolicy::Choice way;
  if (in_place && receives) {
    way = send_recv_stores_.Choose(sent, false);
  } else {
    way.non_temporal = in_place && send_recv_stores_.NonTemporal(sent);
  }
  Status status = send_recv_->Start(
      calls, {.slots = way.non_temporal, .results = options_.nt_store_bytes}, &lanes_);
  if (!status.ok() || send_recv_->done()) return status;
  const Time start = SystemClock().Now();
  status = progress_.Drive(send_recv_.get(), liveness_);
  if (in_place && receives) send_recv_stores_.Learn(sent, false, way, SystemClock().Now() - start);
  return status;
}

// In place, the result's cache lines are loaded already, as they are the input's.
bool CollectiveRunner::TakesNonTemporalOutput(const Call& call) const {
  const size_t bytes = call.bytes();
  const bool many = call.collective == Collective::kAllGather ||
                    call.collective == Collective::kAllToAll ||
                    call.collective == Collective::kGather;
  return bytes * static_cast<size_t>(many ? call.nranks : 1) >= options_.nt_store_bytes &&
         InPlace(call, call.rank).empty();
}

// Applies if another core reads the slots themselves. Direct algorithms keep no partial sums that
// this core would read again.
bool CollectiveRunner::TakesNonTemporalSlots(Algorithm algorithm) const {
  return TraitsOf(algorithm).zero_copy && all_read_in_place_;
}

// In place, only the owner of a part makes its result, from what it has got of every rank.
bool CollectiveRunner::SendsInput(const Call& call, Algorithm algorithm) const {
  return call.residual == nullptr &&
         (TraitsOf(algorithm).one_owner || InPlace(call, call.rank).empty());
}

Status CollectiveRunner::SettleCodec(Call* call, bool* below_min_bytes) const {
  const bool sums_hosts = SumsHosts(call->codec->route(), call->collective, hosts_);
  const int contributions = sums_hosts ? hosts_->hosts() : nranks_;
  const Status unsupported =
      call->codec->Supports(call->collective, call->type, call->op, std::max(2, contributions));
  *below_min_bytes = unsupported.ok() && call->bytes() < call->codec->min_bytes();
  // The sum of one host goes to no other.
  const bool one_host =
      call->codec->route().sums_hosts && Reduces(call->collective) && hosts_ == nullptr;
  if (!unsupported.ok() || *below_min_bytes || one_host || call->codec == IdentityCodec()) {
    call->codec = nullptr;
    call->seed = call->step = 0;
    return Status::Ok();
  }
  if (call->step == 0) call->step = compressed_calls_;
  if (nranks_ == 1) return Status::Ok();
  Status fits = call->codec->Fits(call->collective, contributions);
  return fits.ok() && sums_hosts ? CheckHostSums(*call) : fits;
}

Status CollectiveRunner::Run(const Call& call, Engine* engine) {
  if (call.reducer != nullptr) return Reduce(call);
  if (call.vectors != nullptr) return Concatenate(call);
  return Begin(call, engine);
}

Status CollectiveRunner::Begin(const Call& given, Engine* engine) {
  // What the call leaves open is filled in in a copy.
  std::optional<Call> settled;
  std::vector<std::byte> input;
  bool below_min_bytes = false;
  const bool overwrites = given.collective == Collective::kAllToAll && nranks_ > 1;
  if (given.scalar_at != nullptr || given.codec != nullptr || overwrites) {
    settled = given;
    Status unfit = Settle(&*settled, &input, &below_min_bytes);
    if (!unfit.ok()) return unfit;
  }
  const Call& call = settled.has_value() ? *settled : given;
  if (call.codec != nullptr && SumsHosts(call.codec->route(), call.collective, hosts_)) {
    return SumOnHosts(call);
  }
  // The user's algorithm filter does not apply to the library's own calls.
  const bool own = call.purpose == Purpose::kSplit || call.purpose == Purpose::kGrow;
  Plans* const plans = own ? &own_plans_ : &plans_;
  const Result<Plan*> plan = plans->For(call, below_min_bytes);
  if (!plan.ok()) return plan.status();
  if (call.purpose == Purpose::kWarmUp) return Status::Ok();
  uint64_t signature = 0;
  if (Status status = liveness_->BeginCall(++sequence_, call, &signature); !status.ok()) {
    return status;
  }
  LogCall(call, below_min_bytes, *plans, (*plan)->choice);
  FAULT_POINT("call.after_begin");
  if (call.compressed_call) ++compressed_calls_;
  if (nranks_ == 1) return RunAlone(call);
  const bool long_links = slots_.under_way != 0;
  if (long_links && GathersInputs(call, engine, (*plan)->choice)) {
    return GatherInputs(call, signature);
  }
  return Execute(call, plans, *plan, engine, signature, liveness_);
}

Status CollectiveRunner::Settle(Call* call, std::vector<std::byte>* input,
                                bool* below_min_bytes) const {
  if (call->scalar_at != nullptr) {
    std::memcpy(call->scalar.data(), call->scalar_at, SizeOf(call->type));
  }
  if (call->codec != nullptr) {
    if (Status unfit = SettleCodec(call, below_min_bytes); !unfit.ok()) return unfit;
  }
  if (call->collective != Collective::kAllToAll || nranks_ == 1) return Status::Ok();
  // In place, a peer's segment takes the place of one that this rank sends: it sends a copy.
  const std::span<std::byte> memory = InPlace(*call, rank_);
  input->assign(memory.begin(), memory.end());
  if (!input->empty()) call->send = input->data();
  return Status::Ok();
}

Status CollectiveRunner::RunInner(const Call& call, bool below_min_bytes, Plans* plans,
                                  uint64_t signature) {
  if (call.nranks == 1) {
    CombineAlone(ArgsOf(call), call.send, call.recv);
    return Status::Ok();
  }
  const Result<Plan*> plan = plans->For(call, below_min_bytes);
  if (!plan.ok()) return plan.status();
  LogCall(call, below_min_bytes, *plans, (*plan)->choice);
  return Execute(call, plans, *plan, nullptr, signature, liveness_);
}

Status CollectiveRunner::Execute(const Call& call, Plans* plans, Plan* plan, Engine* engine,
                                 uint64_t signature, WaitObserver* observer) {
  if (Status bound = plans->Bind(call, plan); !bound.ok()) return bound;
  CodecState* state = StateOf(call.codec == nullptr ? IdentityCodec() : call.codec);
  const Algorithm algorithm = plan->choice.algorithm;
  std::optional<ResidualUse> use;
  if (call.residual != nullptr) {
    if (const Status& taken = use.emplace(call.residual.get(), lineage_).status(); !taken.ok())
      return taken;
    feedback_.Use(state, call.residual.get(), TraitsOf(algorithm).one_owner);
    state = &feedback_;
  }
  const bool non_temporal_slots = engine == nullptr && TakesNonTemporalSlots(algorithm);
  const bool one_way = HasRoot(call.collective);
  const bool segmented = SegmentsOf(call.collective, 2) > 1;
  const uint64_t moved = call.bytes() * (segmented ? static_cast<uint64_t>(call.nranks) : 1);
  StorePolicy& stores = slot_stores_[static_cast<size_t>(call.collective)];
  const StorePolicy::Choice way =
      non_temporal_slots ? stores.Choose(moved, one_way) : StorePolicy::Choice{};
  state->set_non_temporal(engine == nullptr && TakesNonTemporalOutput(call), way.non_temporal);
  state->set_team(&team_);
  state->set_shortens(plan->choice.shortens && own_processor_ && engine == nullptr);
  Status status = state->Begin(ArgsOf(call));
  if (!status.ok()) return status;
  const Result<Engine*> for_host = engine == nullptr ? engines_->ForHost() : engine;
  if (!for_host.ok()) return for_host.status();
  if (call.residual != nullptr || call.nranks != nranks_) {
    zero_copy_.Begin();  // what peers read is not the input, or not in the place that they expect
  } else if (engine == nullptr) {
    zero_copy_.Begin(call, algorithm);
  } else {
    zero_copy_.BeginOnDevice(call, algorithm);
  }
  FAULT_POINT("call.after_bind");
  executor_.Start({.program = plan->program,
                   .chunking = plan->chunking,
                   .codec = state,
                   .engine = engine != nullptr ? engine : *for_host,
                   .input = static_cast<const std::byte*>(call.send),
                   .output = static_cast<std::byte*>(call.recv),
                   .signature = signature,
                   .registered_input = zero_copy_.input(),
                   .registered_output = zero_copy_.output(),
                   .registered_result = zero_copy_.result(),
                   .turns = non_temporal_slots && moved >= kLeastTurns,
                   .until_read = way.until_read,
                   .sends_input = SendsInput(call, algorithm),
                   .sends_output = engine == nullptr,
                   .on_device = engine != nullptr});
  // Calls with zero copy hardly use slots.
  const bool learns =
      non_temporal_slots && StorePolicy::Learns(moved, one_way) && !zero_copy_.any();
  const Time start = learns ? SystemClock().Now() : 0;
  status = progress_.Drive(&executor_, observer);
  if (learns) stores.Learn(moved, one_way, way, SystemClock().Now() - start);
  team_.Rest();
  FAULT_POINT("call.before_finish");
  CodecStats codec_stats;
  state->Finish(call.stats != nullptr ? &codec_stats : nullptr);
  if (status.ok()) FillStats(call, codec_stats, call.codec != nullptr);
  if (use.has_value()) {
    if (status.ok()) status = feedback_.CheckComplete();
    if (status.ok()) use->Commit(sequence_);
  }
  return status;
}

void CollectiveRunner::LogCall(const Call& call, bool below_min_bytes, const Plans& plans,
                               const Choice& choice) const {
  if (!LogEnabled(LogLevel::kInfo, LogSubsystem::kCollectives) &&
      !LogEnabled(LogLevel::kInfo, LogSubsystem::kTuning)) {
    return;
  }
  CallRecord record;
  record.Set(sequence_, call);
  const std::string where = fmt::format("{} op {}", name_, sequence_);
  Log(LogLevel::kInfo, LogSubsystem::kCollectives, "{} {}: algorithm {}, codec {}", where,
      record.ToString(), nranks_ == 1 ? "none" : Name(choice.algorithm), record.codec);
  if (nranks_ == 1) return;  // nothing was chosen
  const TunerCall tuned = plans.Tuned(call, below_min_bytes);
  Log(LogLevel::kInfo, LogSubsystem::kTuning, "{} {} of {} bytes takes {}", where,
      Name(call.collective), tuned.bytes(), Explain(tuned, choice));
}

CodecState* CollectiveRunner::StateOf(const std::shared_ptr<const Codec>& codec) {
  for (CodecUse& use : codecs_) {
    if (use.codec == codec) return use.state.get();
  }
  if (codecs_.size() >= kCodecsKept) {
    std::erase_if(codecs_, [](const CodecUse& use) { return use.codec.use_count() == 1; });
  }
  codecs_.push_back({codec, codec->NewState()});
  return codecs_.back().state.get();
}

void CollectiveRunner::FillStats(const Call& call, const CodecStats& codec_stats,
                                 bool compressed) const {
  if (call.stats == nullptr) return;
  const RequestStats task = nranks_ == 1 ? RequestStats{} : executor_.stats();
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
  CopyStats(stats, call.stats);
}

void CollectiveRunner::CopyStats(ccl_compression_stats_t stats, ccl_compression_stats_t* to) {
  const size_t caller_size = stats.size = to->size;
  constexpr size_t kLast = offsetof(ccl_compression_stats_t, compressed);
  std::memcpy(to, &stats, std::min(caller_size, kLast));
  if (caller_size < kLast + sizeof stats.compressed) return;
  // Last: a thread of the caller may wait for it.
  std::atomic_ref(to->compressed).store(stats.compressed, std::memory_order_release);
}

Status CollectiveRunner::RunAlone(const Call& call) const {
  Status status;
  if (call.residual != nullptr) {
    status = RunAloneWithResidual(call);
  } else if (!call.on_device) {
    CombineAlone(call, call.send, call.recv);
  } else if (call.bytes() > 0 && call.send != call.recv) {
    status = CurrentDevice()->Copy(call.recv, call.send, call.bytes());
  }
  if (status.ok()) FillStats(call, {}, false);
  return status;
}

Status CollectiveRunner::RunAloneWithResidual(const Call& call) const {
  std::vector<std::byte> staged(call.on_device ? call.bytes() : 0);
  const std::byte* from = static_cast<const std::byte*>(call.send);
  std::byte* to = static_cast<std::byte*>(call.recv);
  if (call.on_device) {
    if (staged.empty()) return Status::Ok();
    Status status = CurrentDevice()->Copy(staged.data(), call.send, staged.size());
    if (!status.ok()) return status;
    from = to = staged.data();
  }
  ResidualUse use(call.residual.get(), lineage_);
  if (!use.status().ok()) return use.status();
  FeedbackState::CombineAlone(call, from, to, call.residual.get());
  Status status;
  if (call.on_device) status = CurrentDevice()->Copy(call.recv, to, staged.size());
  if (status.ok()) use.Commit(sequence_);
  return status;
}

// Equal on all ranks: over a composite transport some producer has consumers of several parts.
bool CollectiveRunner::AllLanesMulticast() const {
  for (int producer = 0; producer < nranks_; ++producer) {
    if (!transport_->CapsFor(producer, OtherRanks(producer, nranks_)).multicast) return false;
  }
  return true;
}

namespace {

// Makes the schedule of some ranks of a communicator one of the communicator.
void Rename(std::span<const int> members, Schedule* schedule) {
  const auto name = [members](int rank) { return members[static_cast<size_t>(rank)]; };
  schedule->rank = name(schedule->rank);
  for (ScheduleLane& lane : schedule->lanes) {
    lane.producer = name(lane.producer);
    std::transform(lane.consumers.begin(), lane.consumers.end(), lane.consumers.begin(), name);
  }
}

}  // namespace

Result<Plan*> Plans::For(const Call& call, bool below_min_bytes) {
  const uint64_t hash = (call.count ^ reinterpret_cast<uintptr_t>(call.codec.get()) ^
                         uint64_t{static_cast<uint8_t>(call.collective)} << 56 ^
                         uint64_t{static_cast<uint8_t>(call.type)} << 48 ^
                         uint64_t{static_cast<uint8_t>(call.root)} << 40) *
                        0x9E3779B97F4A7C15u;
  Plan& plan = kept_[hash >> (64 - kPlaceBits)];
  const bool known = plan.chosen && plan.args.collective == call.collective &&
                     plan.args.type == call.type && plan.args.root == call.root &&
                     plan.args.count == call.count && plan.below_min_bytes == below_min_bytes &&
                     !plan.codec.owner_before(call.codec) && !call.codec.owner_before(plan.codec);
  if (known) return &plan;
  const Result<Choice> choice = ChoiceFor(call, below_min_bytes);
  if (!choice.ok()) return choice.status();
  plan = {.args = call,
          .codec = call.codec,
          .below_min_bytes = below_min_bytes,
          .chosen = true,
          .choice = *choice,
          .program = nullptr,
          .chunking = {}};
  return &plan;
}

TunerCall Plans::Tuned(const Call& call, bool below_min_bytes) const {
  const bool compresses = call.codec != nullptr && call.nranks > 1;
  return {call,
          compresses,
          comm_.reproducible,
          compresses ? call.codec->route() : Route{},
          below_min_bytes,
          options_.hosts,
          options_.slots,
          compresses && options_.hosts != nullptr
              ? WireBitsOf(*call.codec, call.collective, call.nranks)
              : WireBits()};
}

Status Plans::Bind(const Call& call, Plan* plan) {
  if (plan->program != nullptr) return Status::Ok();
  const Codec& codec = call.codec == nullptr ? *IdentityCodec() : *call.codec;
  const uint32_t slice_bytes = SliceBytesFor(call.collective, plan->choice.algorithm, call.nranks,
                                             options_.hosts, options_.slots);
  if (slice_bytes == 0) return InternalError("the slots of the chosen algorithm do not fit");
  const SlotOptions slots = SlotsOf(call.collective, plan->choice.algorithm, call.nranks,
                                    options_.hosts, options_.slots, slice_bytes);
  const Result<const Program*> program = ProgramFor(call, codec, plan->choice, slots);
  if (!program.ok()) return program.status();
  plan->chunking = CutCall(call, codec, options_.slots.channels, slice_bytes,
                           LongLinksFor(slots, options_.hosts, options_.slots.under_way));
  plan->program = *program;
  return Status::Ok();
}

Result<const Program*> Plans::ProgramFor(const Call& call, const Codec& codec, const Choice& choice,
                                         const SlotOptions& slots) {
  const size_t side_phases = codec.side_phases().size();
  const bool side_one_shot = side_phases > 0 && choice.side_one_shot;
  const int group = codec.route().group;
  const uint64_t key = uint64_t{static_cast<uint8_t>(call.collective)} << 56 |
                       uint64_t{static_cast<uint8_t>(choice.algorithm)} << 52 |
                       uint64_t{static_cast<uint16_t>(group)} << 35 | uint64_t{side_phases} << 33 |
                       uint64_t{side_one_shot} << 32 | static_cast<uint32_t>(call.root);
  std::unique_ptr<Program>& program = programs_[key];
  if (program == nullptr) {
    Result<Schedule> schedule = MakeSchedule({call, choice.algorithm, options_.slots.channels,
                                              side_phases, side_one_shot, group, options_.hosts});
    if (!schedule.ok()) return InternalError(schedule.status().message());
    if (!options_.members.empty()) Rename(options_.members, &*schedule);
    Result<std::unique_ptr<Program>> bound = inccl::Bind(*std::move(schedule), slots, lanes_);
    if (!bound.ok()) return bound.status();
    program = *std::move(bound);
  }
  return program.get();
}

}  // namespace inccl
