// SPDX-License-Identifier: Apache-2.0
#include "engine/device_engine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/log.h"

namespace inccl {

ImportedRegions::~ImportedRegions() {
  if (attached_) transport_->exports()->SetImporter(nullptr);
  for (const auto& [memory, opened] : opened_) {
    device_->Close(number_, const_cast<std::byte*>(memory));
  }
}

void ImportedRegions::Attach() {
  if (attached_) return;
  attached_ = true;
  transport_->exports()->SetImporter(this);
}

bool ImportedRegions::Holds(const std::byte* memory, size_t bytes) const {
  const auto after = opened_.upper_bound(memory);
  if (after == opened_.begin()) return false;
  const auto& [begin, opened] = *std::prev(after);
  const auto offset = static_cast<size_t>(memory - begin);
  return offset <= opened.bytes && bytes <= opened.bytes - offset;
}

std::byte* ImportedRegions::Open(const Region::Handle& handle, size_t bytes) {
  Result<std::byte*> memory = device_->Open(number_, handle);
  const size_t known = memory.ok() ? device_->BytesFrom(number_, *memory) : 0;
  if (known != 0 && known < bytes) {
    device_->Close(number_, *memory);
    memory = InvalidArgument("the allocation is smaller");  // a defect of the peer
  }
  if (!memory.ok()) {
    Log(LogLevel::kInfo, LogSubsystem::kTransport,
        "device {} does not reach {} bytes that a peer has on its device, which therefore come "
        "through slots: {}",
        number_, bytes, memory.status().message());
    return nullptr;
  }
  Opened& opened = opened_[*memory];
  opened.bytes = bytes;
  if (++opened.times > 1) {
    device_->Close(number_, *memory);  // not the last Close, so it does not wait
  } else {
    Log(LogLevel::kInfo, LogSubsystem::kTransport,
        "device {} reads {} bytes that a peer has on its device where they lie", number_, bytes);
  }
  return *memory;
}

// The state of one step in progress; private to the files of DeviceEngine.
class DeviceEngine::Work final : public DeviceWork {
 public:
  Work(DeviceEngine* engine, size_t index)
      : engine_(engine), index_(index), scratch_(engine->device_) {}

  void Start(CodecState* combining, const Range& elements, std::span<const Term> in,
             std::span<Term> out) {
    state = combining;
    range = elements;
    inputs = in;
    outputs = out;
    marks = {};
    kept = {};
    here.clear();
    combined.clear();
    returned.clear();
  }
  CompletionId completion() const { return index_ + 1; }
  void GiveBack() { scratch_.GiveBack(); }

  Result<std::byte*> Scratch(size_t bytes) override { return scratch_.Take(bytes); }
  std::byte* Reach(const std::byte* host, size_t bytes) override {
    return engine_->slots_.Reach(host, bytes);
  }
  bool OnDevice(const std::byte* memory, size_t bytes) const override {
    return engine_->IsThere(memory, bytes);
  }
  Result<const std::byte*> Constant(std::span<const std::byte> bytes,
                                    const std::shared_ptr<const void>& owner) override {
    return engine_->constants_.On(bytes, owner);
  }
  Status Run(
      const std::function<int(const cuda::Launchers& kernels, void* stream)>& launch) override {
    int error = 0;
    Status status =
        engine_->queues_[way]->Run([&](const cuda::Launchers& kernels, void* stream) -> int {
          error = launch(kernels, stream);
          return error;
        });
    if (error == 0) return status;
    return {status.code(), fmt::format("{} ({})", status.message(),
                                       engine_->device_->Kernels()->error_name(error))};
  }

  Stage stage = Stage::kKernels;
  Way way = kFromDevice;  // stream of the kernels
  CodecState* state = nullptr;
  Range range;
  std::span<const Term> inputs;
  std::span<Term> outputs;
  std::array<uint64_t, kWays> marks{};  // marks to wait for; 0: no work on that stream
  // The terms that the host combines: inputs, then outputs.
  std::vector<Term> here;
  size_t inputs_here = 0;
  struct Returned {
    size_t output = 0;  // index into `outputs`
    const std::byte* from = nullptr;
  };
  std::vector<Returned> returned;  // results to copy to the device after the host has combined
  std::vector<size_t> combined;    // indices into `outputs`, in the order of `here`

 private:
  DeviceEngine* const engine_;
  const size_t index_;
  PinnedBuffer scratch_;
};

namespace {

size_t Aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

DeviceConstants::~DeviceConstants() {
  for (std::byte* memory : memory_) device_->FreeOn(number_, memory);
}

// Memory is freed only at the end: freeing may wait for streams that wait for the current call.
Status DeviceConstants::Grow(size_t bytes) {
  memory_.reserve(memory_.size() + 1);
  Result<std::byte*> memory = device_->AllocateOn(number_, bytes);
  if (!memory.ok()) return memory.status();
  memory_.push_back(*memory);
  next_ = *memory;
  left_ = bytes;
  return Status::Ok();
}

Result<const std::byte*> DeviceConstants::On(std::span<const std::byte> bytes,
                                             const std::shared_ptr<const void>& owner) {
  const auto found = known_.find(bytes.data());
  if (found != known_.end()) return static_cast<const std::byte*>(found->second.copy.data());
  // Reuses the copies whose owners have gone: no call asks for those constants again.
  free_.reserve(free_.size() + known_.size());
  for (auto it = known_.begin(); it != known_.end();) {
    const bool held = it->second.owner.use_count() > 1;
    if (!held) free_.push_back(it->second.copy);
    it = held ? std::next(it) : known_.erase(it);
  }
  Result<std::byte*> pinned = here_.Take(bytes.size());
  if (!pinned.ok()) return pinned.status();
  std::copy(bytes.begin(), bytes.end(), *pinned);
  const Result<std::byte*> room = Room(bytes.size());
  Status status = room.ok() ? device_->Copy(*room, *pinned, bytes.size()) : room.status();
  here_.GiveBack();
  if (!status.ok()) return status;
  known_.emplace(bytes.data(), Known{.owner = owner, .copy = {*room, bytes.size()}});
  return static_cast<const std::byte*>(*room);
}

Result<std::byte*> DeviceConstants::Room(size_t bytes) {
  const auto fits = std::find_if(
      free_.begin(), free_.end(),
      [bytes](const std::span<std::byte>& free) { return Aligned(free.size()) == Aligned(bytes); });
  if (fits != free_.end()) {
    std::byte* const room = fits->data();
    free_.erase(fits);
    return room;
  }
  if (bytes > left_) {
    if (Status status = Grow(std::max(Aligned(bytes), kAtOnce)); !status.ok()) return status;
  }
  std::byte* const room = next_;
  const size_t taken = std::min(left_, Aligned(bytes));
  next_ += taken;
  left_ -= taken;
  return room;
}

DeviceSlots::~DeviceSlots() {
  for (const auto& [begin, piece] : pieces_) {
    if (piece.registered) device_->Unregister(piece.begin);
  }
}

void DeviceSlots::Update() {
  spans_.clear();
  transport_->SlotMemory(&spans_);
  for (const Span& span : spans_) {
    const std::byte*& known = ends_[span.data];
    if (known == nullptr) known = span.data;
    const std::byte* const end = span.data + span.bytes;
    if (known >= end) continue;
    Piece piece{.begin = span.data + (known - span.data),
                .bytes = static_cast<size_t>(end - known)};
    known = end;
    const Status status = device_->Register(piece.begin, piece.bytes);
    piece.registered = status.ok();
    if (status.ok()) {
      piece.address = static_cast<std::byte*>(device_->AddressOf(number_, piece.begin));
    } else {
      Log(LogLevel::kInfo, LogSubsystem::kTransport,
          "device {} does not reach {} bytes of slots, which costs copies: {}", number_,
          piece.bytes, status.message());
    }
    pieces_[piece.begin] = piece;
  }
}

const DeviceSlots::Piece* DeviceSlots::Known(const std::byte* host, size_t bytes) const {
  const auto after = pieces_.upper_bound(host);
  if (after == pieces_.begin()) return nullptr;
  const Piece& piece = std::prev(after)->second;
  const auto offset = static_cast<size_t>(host - piece.begin);
  return offset < piece.bytes && bytes <= piece.bytes - offset ? &piece : nullptr;
}

const DeviceSlots::Piece* DeviceSlots::Find(const std::byte* host, size_t bytes) {
  const Piece* piece = Known(host, bytes);
  if (piece == nullptr) {
    Update();  // peers open lanes during a call
    piece = Known(host, bytes);
  }
  return piece != nullptr && piece->registered ? piece : nullptr;
}

std::byte* DeviceSlots::Reach(const std::byte* host, size_t bytes) {
  const Piece* const piece = Find(host, bytes);
  if (piece == nullptr || piece->address == nullptr) return nullptr;
  return piece->address + (host - piece->begin);
}

namespace {

constexpr useconds_t kDrainLook = 20;
constexpr size_t kSmallInput = size_t{32} << 10;
constexpr size_t kWorksAhead = 3;  // the strands of a two-shot all-reduce

template <class Terms, class Predicate>
bool AnyOf(const Terms& terms, const Predicate& predicate) {
  return std::any_of(terms.begin(), terms.end(), predicate);
}

}  // namespace

DeviceEngine::DeviceEngine(Device* device, int number, const Transport* transport,
                           const ImportedRegions* regions)
    : device_(device),
      number_(number),
      regions_(regions),
      slots_(device, number, transport),
      input_here_memory_(device),
      constants_(device, number) {}

Result<std::unique_ptr<DeviceEngine>> DeviceEngine::Create(Device* device, int number,
                                                           const Transport* transport,
                                                           const ImportedRegions* regions,
                                                           const StepBytes& step_bytes) {
  std::unique_ptr<DeviceEngine> engine(new DeviceEngine(device, number, transport, regions));
  for (std::unique_ptr<DeviceQueue>& queue : engine->queues_) {
    Result<std::unique_ptr<DeviceQueue>> made = device->NewQueue(number);
    if (!made.ok()) return made.status();
    queue = *std::move(made);
  }
  if (device->Kernels() != nullptr && device->Kernels()->load != nullptr) {
    int error = 0;
    const Status status = engine->queues_[kFromDevice]->Run(
        [&error](const cuda::Launchers& kernels, void* /*stream*/) -> int {
          return error = kernels.load();
        });
    // The driver is too old or the library has no code for the device. Results are the same without
    // kernels.
    engine->refused_ = !status.ok();
    if (!status.ok()) {
      Log(LogLevel::kWarn, LogSubsystem::kInit,
          "device {} does not take the kernels, so that elements are copied to the host: {} ({})",
          number, status.message(), device->Kernels()->error_name(error));
    }
  }
  const size_t bytes = engine->HasKernels() ? step_bytes.with_kernels : step_bytes.without;
  // Allocates now what the first calls need: during a call an allocation may wait for the device,
  // whose streams wait for that call.
  for (size_t i = 0; i < kWorksAhead; ++i) {
    engine->works_.push_back(std::make_unique<Work>(engine.get(), i));
    if (Result<std::byte*> memory = engine->works_.back()->Scratch(bytes); !memory.ok()) {
      return memory.status();
    }
  }
  engine->free_.reserve(kWorksAhead);
  for (const std::unique_ptr<Work>& work : engine->works_) engine->GiveBack(work.get());
  if (Result<std::byte*> input = engine->input_here_memory_.Take(kSmallInput); !input.ok()) {
    return input.status();
  }
  if (Status status = engine->constants_.Prepare(); !status.ok()) return status;
  return engine;
}

DeviceEngine::~DeviceEngine() {
  for (std::unique_ptr<DeviceQueue>& queue : queues_) queue.reset();
}

// Copies a small input to the host as a whole, so that its steps wait for one copy instead of one
// each. Kernels read the input in place.
Status DeviceEngine::Begin(const Call& call) {
  call_ = call;
  on_host_ = false;
  input_here_ = nullptr;
  input_here_memory_.GiveBack();
  const bool kernels = call.compressed && HasKernels();
  if (call.input_bytes == 0 || call.input_bytes > kSmallInput || kernels) return Status::Ok();
  Result<std::byte*> memory = input_here_memory_.Take(call.input_bytes);
  if (!memory.ok()) return memory.status();
  Status status = queues_[kFromDevice]->Copy(*memory, call.input, call.input_bytes);
  if (!status.ok()) return status;
  Result<uint64_t> mark = queues_[kFromDevice]->Mark();
  if (!mark.ok()) return mark.status();
  input_here_ = *memory;
  input_mark_ = *mark;
  return Status::Ok();
}

bool DeviceEngine::IsThere(const std::byte* memory, size_t bytes) const {
  const auto within = [&](const std::byte* begin, size_t size) {
    return begin != nullptr && memory >= begin && memory <= begin + size &&
           bytes <= static_cast<size_t>(begin + size - memory);
  };
  return within(call_.input, call_.input_bytes) || within(call_.output, call_.output_bytes) ||
         (number_ == regions_->number() && regions_->Holds(memory, bytes));
}

bool DeviceEngine::OwnThere(const Term& input) const {
  return input.format.form == Form::kInput && input.data >= call_.input &&
         input.data < call_.input + call_.input_bytes;
}

bool DeviceEngine::IsRegistered(const Term& input) const {
  return regions_->any() && !OwnThere(input) && regions_->Holds(input.data, input.bytes);
}

void DeviceEngine::BeginOnHost() {
  call_ = {};
  on_host_ = true;
  input_here_ = nullptr;
}

// Outputs elsewhere are targets in a peer's region, which is host memory.
bool DeviceEngine::OnDevice(const Term& output) const {
  return output.format.form == Form::kOutput && output.data >= call_.output &&
         output.data < call_.output + call_.output_bytes;
}

DeviceEngine::Work* DeviceEngine::Take() {
  if (free_.empty()) {
    free_.reserve(works_.size() + 1);
    works_.push_back(std::make_unique<Work>(this, works_.size()));
    free_.push_back(works_.back().get());
  }
  Work* const work = free_.back();
  free_.pop_back();
  return work;
}

void DeviceEngine::GiveBack(Work* work) {
  work->GiveBack();
  free_.push_back(work);
}

Status DeviceEngine::Copy(Work* work, Way way, std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 0 || to == from) return Status::Ok();
  work->marks[way] = UINT64_MAX;  // until Mark
  return queues_[way]->Copy(to, from, bytes);
}

Status DeviceEngine::Mark(Work* work) {
  for (size_t way = 0; way < kWays; ++way) {
    if (work->marks[way] != UINT64_MAX) continue;
    Result<uint64_t> mark = queues_[way]->Mark();
    if (!mark.ok()) return mark.status();
    work->marks[way] = *mark;
  }
  return Status::Ok();
}

Result<bool> DeviceEngine::Reached(Work* work) {
  for (size_t way = 0; way < kWays; ++way) {
    if (work->marks[way] == 0) continue;
    Result<bool> reached = queues_[way]->Reached(work->marks[way]);
    if (!reached.ok() || !*reached) return reached;
    work->marks[way] = 0;
  }
  return true;
}

Result<CompletionId> DeviceEngine::Combine(CodecState* state, const Range& range,
                                           std::span<const Term> inputs, std::span<Term> outputs) {
  const bool there =
      AnyOf(inputs, [this](const Term& input) { return OwnThere(input) || IsRegistered(input); }) ||
      AnyOf(outputs, [this](const Term& output) { return OnDevice(output); });
  if (!there || range.count == 0) {
    if (Status status = state->Combine(range, inputs, outputs); !status.ok()) return status;
    return CompletionId{0};
  }
  Work* const work = Take();  // after an error Drain gives it back
  work->Start(state, range, inputs, outputs);
  Result<bool> launched = Launch(work);
  if (!launched.ok()) return launched.status();
  if (!*launched) {
    Result<bool> moved = Move(work);
    if (!moved.ok()) return moved.status();
    if (!*moved) {
      if (Status status = CopyIn(work); !status.ok()) return status;
    }
  }
  if (Status status = Mark(work); !status.ok()) return status;
  if (work->stage == Stage::kCopyingOut && work->marks == decltype(work->marks){}) {
    GiveBack(work);
    return CompletionId{0};
  }
  return work->completion();
}

Result<bool> DeviceEngine::Done(CompletionId completion) {
  Work* const work = works_[completion - 1].get();
  Result<bool> reached = Reached(work);
  if (!reached.ok() || !*reached) return reached;
  switch (work->stage) {
    case Stage::kKernels: {
      Status status = work->state->Complete(work->range, work->inputs, work->outputs, work);
      if (!status.ok()) return status;
      break;
    }
    case Stage::kCopyingIn: {
      if (Status status = CombineHere(work); !status.ok()) return status;
      if (Status status = Mark(work); !status.ok()) return status;
      if (!work->returned.empty()) return false;
      break;
    }
    case Stage::kCopyingOut: break;
  }
  GiveBack(work);
  return true;
}

void DeviceEngine::Drain() {
  for (const std::unique_ptr<DeviceQueue>& queue : queues_) {
    // A failed queue runs no more work.
    const Result<uint64_t> mark = queue->Mark();
    if (!mark.ok()) continue;
    while (true) {
      const Result<bool> reached = queue->Reached(*mark);
      if (!reached.ok() || *reached) break;
      usleep(kDrainLook);
    }
  }
  free_.clear();
  for (const std::unique_ptr<Work>& work : works_) GiveBack(work.get());
}

// The three ways to run a step: kernels, moves, and copies around work on the host.

namespace {

bool Elements(const Term& term) {
  return term.format.form == Form::kInput || term.format.form == Form::kOutput;
}

}  // namespace

Result<bool> DeviceEngine::Launch(Work* work) {
  if (!HasKernels() || on_host_) return false;
  bool to_device_alone = true;
  for (const Term& output : work->outputs) {
    const bool there = OnDevice(output);
    if (Elements(output) && !there) return false;
    to_device_alone = to_device_alone && there;
  }
  work->stage = Stage::kKernels;
  work->way = to_device_alone ? kToDevice : kFromDevice;
  Result<bool> launched = work->state->Launch(work->range, work->inputs, work->outputs, work);
  if (!launched.ok()) return launched;
  if (*launched) {
    work->marks[work->way] = UINT64_MAX;
  } else {
    work->GiveBack();
  }
  return launched;
}

// Copies the input directly if every output has the same bytes as the single input.
Result<bool> DeviceEngine::Move(Work* work) {
  if (work->inputs.size() != 1 || on_host_) return false;
  const Term& input = work->inputs[0];
  const size_t bytes = work->range.count * SizeOf(call_.type);
  const bool own = OwnThere(input);
  const bool registered = IsRegistered(input);
  if (own && input_here_ != nullptr) return false;
  if (own ? !work->state->InputIsPayload()
          : input.format.form != Form::kResult || !work->state->ResultIsPayload() ||
                input.bytes != bytes || !(registered || slots_.Copies(input.data, bytes))) {
    return false;
  }
  for (const Term& output : work->outputs) {
    if (OnDevice(output)) {
      if (own && Reduces(call_.collective)) return false;
      continue;
    }
    if (registered) return false;
    if (!own) continue;  // a copy from slot to slot, below
    const bool payload = (output.format.form == Form::kSum && output.format.contributions == 1) ||
                         (output.format.form == Form::kResult && !Reduces(call_.collective) &&
                          work->state->ResultIsPayload());
    if (!payload || output.bytes < bytes || !slots_.Copies(output.data, bytes)) return false;
  }
  work->stage = Stage::kCopyingOut;
  work->here.push_back(input);
  work->inputs_here = 1;
  for (size_t i = 0; i < work->outputs.size(); ++i) {
    Term& output = work->outputs[i];
    const bool there = OnDevice(output);
    if (!own && !there) {
      work->here.push_back(output);
      work->combined.push_back(i);
      continue;
    }
    Status status = Copy(work, there ? kToDevice : kFromDevice, output.data, input.data, bytes);
    if (!status.ok()) return status;
    output.bytes = static_cast<uint32_t>(bytes);
  }
  if (work->combined.empty()) return true;
  if (Status status = CombineHere(work); !status.ok()) return status;
  return true;
}

Status DeviceEngine::CopyIn(Work* work) {
  const size_t bytes = work->range.count * SizeOf(call_.type);
  work->stage = Stage::kCopyingIn;
  bool waits = false, copies = false;
  for (const Term& input : work->inputs) {
    Term term = input;
    if (OwnThere(input) && input_here_ != nullptr) {
      term.data = const_cast<std::byte*>(input_here_) + (input.data - call_.input);
      waits = true;
    } else if (OwnThere(input) || IsRegistered(input)) {
      const size_t size = OwnThere(input) ? bytes : input.bytes;
      Result<std::byte*> memory = work->Scratch(size);
      if (!memory.ok()) return memory.status();
      term.data = *memory;
      copies = true;
      Status status = Copy(work, kFromDevice, term.data, input.data, size);
      if (!status.ok()) return status;
    }
    work->here.push_back(term);
  }
  work->inputs_here = work->here.size();
  // With ResultIsPayload, the result slot for the peers also holds the bytes for the device.
  const std::byte* result = nullptr;
  for (const Term& output : work->outputs) {
    if (output.format.form == Form::kResult && work->state->ResultIsPayload() &&
        slots_.Copies(output.data, bytes)) {
      result = output.data;
    }
  }
  for (size_t i = 0; i < work->outputs.size(); ++i) {
    Term term = work->outputs[i];
    if (OnDevice(term)) {
      if (result != nullptr) {
        work->returned.push_back({i, result});
        continue;
      }
      Result<std::byte*> memory = work->Scratch(bytes);
      if (!memory.ok()) return memory.status();
      term.data = *memory;
      work->returned.push_back({i, term.data});
    }
    work->here.push_back(term);
    work->combined.push_back(i);
  }
  if (copies) return Status::Ok();  // the queue runs them after the copy of the input
  if (waits) {
    work->marks[kFromDevice] = input_mark_;
    Result<bool> reached = Reached(work);
    if (!reached.ok()) return reached.status();
    if (!*reached) return Status::Ok();
  }
  return CombineHere(work);
}

Status DeviceEngine::CombineHere(Work* work) {
  const size_t bytes = work->range.count * SizeOf(call_.type);
  const std::span<Term> terms(work->here);
  const std::span<Term> outputs = terms.subspan(work->inputs_here);
  Status status = work->state->Combine(work->range, terms.first(work->inputs_here), outputs);
  if (!status.ok()) return status;
  for (size_t i = 0; i < outputs.size(); ++i) {
    work->outputs[work->combined[i]].bytes = outputs[i].bytes;
  }
  work->stage = Stage::kCopyingOut;
  for (const Work::Returned& returned : work->returned) {
    Term& output = work->outputs[returned.output];
    output.bytes = static_cast<uint32_t>(bytes);
    status = Copy(work, kToDevice, output.data, returned.from, bytes);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

}  // namespace inccl
