// SPDX-License-Identifier: Apache-2.0
//
// Submits a checked call: runs it at once, puts it on its stream, or adds it to the thread's group.
// Calls on device memory always use a stream of the device. The group of a thread.
#ifndef INCCL_API_SUBMIT_H_
#define INCCL_API_SUBMIT_H_

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "api/handles.h"
#include "base/status.h"
#include "communicator/communicator.h"
#include "stream/batch.h"

namespace inccl {

// The calls that a thread collects between ccl_group_start and ccl_group_end.
class Group {
 public:
  // The calling thread's open group, or nullptr.
  static Group* Current();
  static void Start();
  // kInvalidArgument if the thread has no open group. The outermost End starts everything, and
  // waits for calls without a stream.
  static Status End();

  void Add(const std::shared_ptr<Communicator>& communicator, const std::shared_ptr<Stream>& stream,
           const Call& call);
  // Adds a job that makes a communicator from this one; it runs after the earlier calls on
  // `communicator` and before the later ones.
  void Add(const std::shared_ptr<Communicator>& communicator, std::function<Status()> job);
  // Adds a job that makes a communicator from none.
  void Add(std::function<Status()> job) { jobs_.push_back(std::move(job)); }
  // A call of the group has failed, so End starts nothing. `fatal`: the call's communicator has
  // failed already. End then fails the other communicators of the group, too, because their ranks
  // would wait for these calls.
  void Spoil(const Status& status, bool fatal) {
    if (spoiled_.ok()) spoiled_ = status;
    fatal_ = fatal_ || fatal;
  }

 private:
  // Consecutive calls of a communicator, and the job that runs after them.
  struct Step {
    Batch batch;
    std::vector<std::shared_ptr<Stream>> streams;  // of its calls, without duplicates
    bool waits = false;                            // has calls without a stream
    std::function<Status()> job;                   // may be empty
    Status refused;                                // error of a stream that did not take the step

    void AddStream(const std::shared_ptr<Stream>& stream);
    bool GoesTo(const std::shared_ptr<Stream>& stream) const;
  };
  struct Part {
    std::shared_ptr<Communicator> communicator;
    std::vector<Step> steps = std::vector<Step>(1);  // in order; all but the last have a job
  };
  // A position on a stream, shared by all steps that use the stream.
  struct Enqueued {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<StreamOrder> order;  // nullptr: the stream did not take it, see status
    Status status;
  };

  Part& PartOf(const std::shared_ptr<Communicator>& communicator);
  // May throw std::bad_alloc; the StreamOrders then complete the positions that were taken.
  void EnqueueAll();
  void Prepare(const std::shared_ptr<Completion>& completion);
  // Fails all communicators of the group before anything has started, so that other ranks do not
  // wait.
  Status FailParts(const Status& status);
  // Passes the calls of a step to the communicator's worker.
  static Status Start(Communicator* communicator, Step* step);
  static Status RunInOrder(Part* part);
  static void GiveUp(Part* part, const Status& status);
  Status Run();

  int depth_ = 1;
  std::vector<Part> parts_;  // in the order of their first call
  std::vector<std::function<Status()>> jobs_;
  std::vector<Enqueued> enqueued_;
  Status spoiled_;
  bool fatal_ = false;
};

// The reduction with this number of the C API, or nullptr.
const PreMulSum* FindReduction(ccl_comm_t comm, int op);

Status SubmitCall(const std::shared_ptr<Communicator>& communicator,
                  const std::shared_ptr<Stream>& stream, const Call& call);

// Runs the code of a call on `comm`, which is ready, without effects: its first execution would
// take the user's first call longer than a small call takes.
void WarmUpCalls(ccl_comm_t comm);

// Returns the stream of a call, or nullptr for none, and sets call->on_device and call->device.
// kInvalidArgument if there is no such stream, or if it does not fit the memory of the buffers.
Result<std::shared_ptr<Stream>> StreamOf(ccl_stream_t stream, const Communicator& communicator,
                                         Call* call);

// As Guarded, for calls that create communicators: an error spoils the open group.
template <typename Function>
ccl_result_t GuardedInGroup(Function&& function) {
  return Guarded([&]() -> Status {
    Status status = CatchOutOfMemory(function);
    Group* const group = Group::Current();
    if (group != nullptr && !status.ok() && status.code() != Code::kInProgress) {
      group->Spoil(status, false);
    }
    return status;
  });
}

// `make` checks the arguments of a call on `comm`, which is ready, and fills in *call. Texts about
// wrong arguments get the rank as a prefix; any other error becomes sticky, because the other ranks
// wait for this call. Both spoil the open group.
template <typename Make>
ccl_result_t Submit(ccl_comm_t comm, ccl_stream_t stream, Make&& make) {
  return Guarded([&]() -> Status {
    const Lease lease(comm, Need::kReady);
    Status status = lease.status();
    bool fatal = false;
    if (status.ok()) {
      status = comm->impl->MakeSticky(CatchOutOfMemory([&]() -> Status {
        Call call;
        Status made = make(&call);
        if (made.ok()) {
          Result<std::shared_ptr<Stream>> found = StreamOf(stream, *comm->impl, &call);
          made = found.ok() ? SubmitCall(comm->impl, *found, call) : found.status();
        }
        if (made.code() != Code::kInvalidArgument) return made;
        return InvalidArgument(fmt::format("{}: {}", lease->rank_name(), made.message()));
      }));
      fatal = !status.ok() && status.code() != Code::kInvalidArgument;
    }
    if (Group* group = Group::Current(); group != nullptr && !status.ok()) {
      group->Spoil(status, fatal);
    }
    return status;
  });
}

}  // namespace inccl

#endif  // INCCL_API_SUBMIT_H_
