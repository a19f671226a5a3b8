// SPDX-License-Identifier: Apache-2.0
#include "api/submit.h"

#include <algorithm>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread.h"
#include "device/runtime.h"
#include "stream/stream.h"

namespace inccl {
namespace {

struct Buffer {
  const char* name;
  const void* data;
  uint64_t elements;  // 0: the call has no such buffer
};

std::string MemoryOf(Device* device, const void* data) {
  const int number = device->DeviceOf(data);
  return number < 0 ? "memory of the host" : fmt::format("memory of device {}", number);
}

// Which memory holds the buffers of a call.
struct StreamPlace {
  bool on_device = false;
  int device = -1;  // the device that holds all of them; -1: none or several
};

// `otherwise`: on_device if the call has no buffers.
Result<StreamPlace> PlaceOf(Device* device, std::span<const Buffer> buffers, bool otherwise) {
  const Buffer* first = nullptr;
  StreamPlace place{.on_device = otherwise, .device = -1};
  for (const Buffer& buffer : buffers) {
    if (buffer.elements == 0) continue;
    const int number = device->DeviceOf(buffer.data);
    if (first == nullptr) {
      first = &buffer;
      place = {.on_device = number >= 0, .device = number};
    } else if ((number >= 0) != place.on_device) {
      return InvalidArgument(fmt::format("{} is {}, {} {}: they must be of one kind", first->name,
                                         MemoryOf(device, first->data), buffer.name,
                                         MemoryOf(device, buffer.data)));
    } else if (number != place.device) {
      place.device = -1;
    }
  }
  return place;
}

Result<std::shared_ptr<Stream>> StreamFor(ccl_stream_t stream, std::span<const Buffer> buffers,
                                          StreamPlace* place) {
  std::shared_ptr<Stream> own = stream == nullptr ? nullptr : FindStream(stream);
  const bool foreign = stream != nullptr && own == nullptr;
  Device* const device = foreign ? LookForDevice() : CurrentDevice();
  if (device == nullptr) {
    if (foreign) return NoStream();
    return own;
  }
  Result<StreamPlace> found = PlaceOf(device, buffers, foreign);
  if (!found.ok()) return found.status();
  *place = *found;
  if (!place->on_device) {
    if (!foreign) return own;
    return InvalidArgument(
        "stream: not of ccl_stream_create, which a call on memory of the host takes, or NULL");
  }
  if (own != nullptr) {
    return InvalidArgument(
        "stream: of ccl_stream_create, but the buffers are memory of a device: give a stream of "
        "the "
        "device");
  }
  return DeviceStreamOf(device, stream);
}

}  // namespace

const PreMulSum* FindReduction(ccl_comm_t comm, int op) { return comm->reductions.Find(op); }

Result<std::shared_ptr<Stream>> StreamOf(ccl_stream_t stream, const Communicator& communicator,
                                         Call* call) {
  if (stream == nullptr && CurrentDevice() == nullptr) return std::shared_ptr<Stream>();
  std::vector<Buffer> several;
  const Extent extent = ExtentOf(*call, communicator.rank(), communicator.nranks());
  const Buffer both[] = {{"send", call->send, extent.send}, {"recv", call->recv, extent.recv}};
  std::span<const Buffer> buffers = both;
  if (call->vectors != nullptr) {
    for (const FusedVector& vector : *call->vectors) {
      several.push_back({"send", vector.send, vector.count});
      several.push_back({"recv", vector.recv, vector.count});
    }
    buffers = several;
  }
  StreamPlace place;
  Result<std::shared_ptr<Stream>> found = StreamFor(stream, buffers, &place);
  call->on_device = place.on_device;
  call->device = place.device;
  Device* const device = CurrentDevice();
  if (found.ok() && !call->on_device && call->scalar_at != nullptr && device != nullptr &&
      device->DeviceOf(call->scalar_at) >= 0) {
    return InvalidArgument(
        fmt::format("op: its factor is {}, the buffers memory of the host: make it with a factor "
                    "there",
                    MemoryOf(device, call->scalar_at)));
  }
  return found;
}

Status SubmitCall(const std::shared_ptr<Communicator>& communicator,
                  const std::shared_ptr<Stream>& stream, const Call& call) {
  Group* const group = Group::Current();
  // For sends and receives in a group, the end of the group prepares all of them together.
  if (group == nullptr || call.kind == CallKind::kCollective) communicator->PrepareFor({&call, 1});
  if (group != nullptr) {
    // An error that is known now spoils the group, and End starts nothing.
    Status status = stream == nullptr ? Status::Ok() : stream->Check();
    if (status.ok()) group->Add(communicator, stream, call);
    return status;
  }
  if (stream == nullptr) return communicator->Run(call);
  if (Status sticky = communicator->error(); !sticky.ok()) return sticky;
  Batch batch;
  batch.Add(call);
  const auto order = std::make_shared<StreamOrder>(stream, 1);
  batch.orders.push_back(order);
  if (Status status = order->Enqueue(communicator->label()); !status.ok()) return status;
  Status status = communicator->Enqueue(std::move(batch));
  if (!status.ok()) order->Complete(communicator->MakeSticky(status));
  return status;
}

namespace {

// A plain pointer, because a thread may have no memory to register a destructor. A thread that ends
// inside a group leaks it.
thread_local Group* current = nullptr;

Status Guard(const std::function<Status()>& job) {
  try {
    return job();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  } catch (const std::exception& e) {
    return CatchOutOfMemory([&] { return SystemError(e.what()); });
  }
}

}  // namespace

Group* Group::Current() { return current; }

void Group::Start() {
  if (current == nullptr) {
    current = new Group;
  } else {
    ++current->depth_;
  }
}

Status Group::End() {
  if (current == nullptr) {
    return InvalidArgument("ccl_group_end: no group was started by this thread");
  }
  if (--current->depth_ > 0) return Status::Ok();
  const std::unique_ptr<Group> group(std::exchange(current, nullptr));  // calls below belong to no
                                                                        // group
  if (group->fatal_) return group->FailParts(group->spoiled_);
  if (!group->spoiled_.ok()) return group->spoiled_;
  return group->Run();
}

void Group::Step::AddStream(const std::shared_ptr<Stream>& stream) {
  if (stream == nullptr) {
    waits = true;
  } else if (!GoesTo(stream)) {
    streams.push_back(stream);
  }
}

bool Group::Step::GoesTo(const std::shared_ptr<Stream>& stream) const {
  return std::find(streams.begin(), streams.end(), stream) != streams.end();
}

Group::Part& Group::PartOf(const std::shared_ptr<Communicator>& communicator) {
  auto part = std::find_if(parts_.begin(), parts_.end(),
                           [&](const Part& p) { return p.communicator == communicator; });
  if (part != parts_.end()) return *part;
  parts_.emplace_back().communicator = communicator;
  return parts_.back();
}

// All sends and receives of a group run at the same time, so they belong to the first step.
void Group::Add(const std::shared_ptr<Communicator>& communicator,
                const std::shared_ptr<Stream>& stream, const Call& call) {
  Part& part = PartOf(communicator);
  Step& step = call.kind == CallKind::kCollective ? part.steps.back() : part.steps.front();
  step.AddStream(stream);
  step.batch.Add(call);
}

void Group::Add(const std::shared_ptr<Communicator>& communicator, std::function<Status()> job) {
  Part& part = PartOf(communicator);
  part.steps.emplace_back();  // if it throws, the job is not added
  part.steps[part.steps.size() - 2].job = std::move(job);
}

void Group::EnqueueAll() {
  std::vector<Stream*> streams;
  std::vector<Stream::User> users;
  std::vector<int> steps;  // number of steps by stream
  for (const Part& part : parts_) {
    part.communicator->PrepareFor(part.steps.front().batch.send_recv);
    for (const Step& step : part.steps) {
      for (const std::shared_ptr<Stream>& stream : step.streams) {
        const auto found = std::find(streams.begin(), streams.end(), stream.get());
        const auto at = static_cast<size_t>(found - streams.begin());
        if (found == streams.end()) {
          enqueued_.emplace_back().stream = stream;
          streams.push_back(stream.get());
          users.push_back(part.communicator->label());
          steps.push_back(0);
        } else if (users[at]->find(*part.communicator->label()) == std::string::npos) {
          users[at] = std::make_shared<const std::string>(*users[at] + " and " +
                                                          *part.communicator->label());
        }
        ++steps[at];
      }
    }
  }
  for (size_t i = 0; i < enqueued_.size(); ++i) {
    enqueued_[i].order = std::make_shared<StreamOrder>(enqueued_[i].stream, steps[i]);
  }
  const std::vector<Result<uint64_t>> positions = Stream::EnqueueAll(streams, users);
  for (size_t i = 0; i < enqueued_.size(); ++i) {
    if (positions[i].ok()) {
      enqueued_[i].order->SetPosition(*positions[i]);
    } else {
      enqueued_[i].order = nullptr;
      enqueued_[i].status = positions[i].status();
    }
  }
}

void Group::Prepare(const std::shared_ptr<Completion>& completion) {
  EnqueueAll();
  for (Part& part : parts_) {
    for (Step& step : part.steps) {
      for (const std::shared_ptr<Stream>& stream : step.streams) {
        const Enqueued& entered =
            *std::find_if(enqueued_.begin(), enqueued_.end(),
                          [&](const Enqueued& e) { return e.stream == stream; });
        if (entered.order != nullptr) {
          step.batch.orders.push_back(entered.order);
        } else if (step.refused.ok()) {
          // kInvalidArgument would promise that the call had no effect.
          const bool refused = entered.status.code() == Code::kInvalidArgument;
          step.refused = refused ? InvalidUsage(entered.status.message()) : entered.status;
        }
      }
      if (!step.waits) continue;
      step.batch.completion = part.steps.size() == 1 ? completion : std::make_shared<Completion>();
      step.batch.completion->Add();
    }
  }
}

Status Group::FailParts(const Status& status) {
  Status first = status;
  for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
    first = part->communicator->MakeSticky(status);
  }
  return first;
}

Status Group::Start(Communicator* communicator, Step* step) {
  if (step->batch.calls.empty() && step->batch.send_recv.empty()) return Status::Ok();
  Status status = step->refused;
  if (status.ok()) status = communicator->Enqueue(std::move(step->batch));
  if (status.ok()) return status;
  status = communicator->MakeSticky(status);  // so that other ranks do not wait for this call
  for (const std::shared_ptr<StreamOrder>& order : step->batch.orders) order->Complete(status);
  if (step->batch.completion != nullptr) step->batch.completion->Done(status);
  return status;
}

// Runs steps with jobs in between. A job begins when the calls of its step without a stream have
// completed.
Status Group::RunInOrder(Part* part) {
  Status first;
  const auto note = [&](const Status& status) {
    if (first.ok()) first = status;
  };
  for (Step& step : part->steps) {
    const std::shared_ptr<Completion> completion = step.batch.completion;
    note(Start(part->communicator.get(), &step));
    if (completion != nullptr) note(completion->Wait());
    if (step.job) note(Guard(step.job));
  }
  return first;
}

// No thread could be started for this part.
void Group::GiveUp(Part* part, const Status& status) {
  part->communicator->Fail(status);
  for (const Step& step : part->steps) {
    for (const std::shared_ptr<StreamOrder>& order : step.batch.orders) order->Complete(status);
  }
}

Status Group::Run() {
  if (parts_.empty() && jobs_.size() == 1) return Guard(jobs_.front());
  if (jobs_.empty() && parts_.size() == 1 && parts_[0].steps.size() == 1) {
    Part& only = parts_[0];
    if (only.steps[0].streams.empty() && only.communicator->idle()) {
      return only.communicator->RunBatch(only.steps[0].batch);
    }
  }
  std::shared_ptr<Completion> completion;
  std::vector<Status> results;
  std::vector<std::thread> threads;
  const Status prepared = CatchOutOfMemory([&] {
    completion = std::make_shared<Completion>();
    results.resize(parts_.size() + jobs_.size());
    threads.reserve(results.size());
    Prepare(completion);
    return Status::Ok();
  });
  if (!prepared.ok()) return FailParts(prepared);
  // Below, nothing throws: batches that run use the caller's memory.
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].steps.size() > 1) continue;
    results[i] = Start(parts_[i].communicator.get(), &parts_[i].steps[0]);
  }
  // These parts may wait for each other, so each needs its own thread.
  for (size_t i = 0; i < results.size(); ++i) {
    Part* const part = i < parts_.size() ? &parts_[i] : nullptr;
    if (part != nullptr && part->steps.size() == 1) continue;
    const Status started = CatchOutOfMemory([&]() -> Status {
      Result<std::thread> thread = StartThread("inccl-group", [this, i, part, &results] {
        results[i] = part != nullptr ? RunInOrder(part) : Guard(jobs_[i - parts_.size()]);
      });
      if (!thread.ok()) return thread.status();
      threads.push_back(*std::move(thread));
      return Status::Ok();
    });
    if (started.ok()) continue;
    results[i] = started;
    if (part != nullptr) GiveUp(part, started);
  }
  for (std::thread& thread : threads) thread.join();
  const Status waited = completion->Wait();
  const auto failed =
      std::find_if(results.begin(), results.end(), [](const Status& s) { return !s.ok(); });
  return failed == results.end() ? waited : *failed;
}

}  // namespace inccl
