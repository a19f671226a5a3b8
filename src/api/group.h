// SPDX-License-Identifier: Apache-2.0
//
// What a thread collects between ccl_group_start and ccl_group_end.
#ifndef INCCL_API_GROUP_H_
#define INCCL_API_GROUP_H_

#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "communicator/communicator.h"
#include "stream/batch.h"

namespace inccl {

class Group {
 public:
  // The calling thread's open group, or nullptr.
  static Group* Current();
  static void Start();
  // kInvalidArgument if there is no group. The outermost End starts everything, and waits for what
  // has no stream.
  static Status End();

  void Add(const std::shared_ptr<Communicator>& communicator, const std::shared_ptr<Stream>& stream,
           const Call& call);
  // Makes a communicator of this one: after the calls on it before, and before those after.
  void Add(const std::shared_ptr<Communicator>& communicator, std::function<Status()> job);
  // Makes a communicator of none.
  void Add(std::function<Status()> job) { jobs_.push_back(std::move(job)); }
  // A call of the group was wrong: nothing will be started. `fatal`: its communicator has failed
  // already, and so will the others of the group, whose ranks would wait for these calls.
  void Spoil(const Status& status, bool fatal) {
    if (spoiled_.ok()) spoiled_ = status;
    fatal_ = fatal_ || fatal;
  }

 private:
  // Some calls of a communicator, and what is done after them.
  struct Step {
    Batch batch;
    std::vector<std::shared_ptr<Stream>> streams;  // of its calls, each once
    bool waits = false;                            // has calls without a stream
    std::function<Status()> job;                   // may be empty
    Status refused;                                // by one of the streams

    void AddStream(const std::shared_ptr<Stream>& stream);
    bool GoesTo(const std::shared_ptr<Stream>& stream) const;
  };
  struct Part {
    std::shared_ptr<Communicator> communicator;
    std::vector<Step> steps = std::vector<Step>(1);  // in order; all but the last have a job
  };
  // A place on the stream, for all steps that go there.
  struct Enqueued {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<StreamOrder> order;  // nullptr: the stream has refused, and says why
    Status status;
  };

  Part& PartOf(const std::shared_ptr<Communicator>& communicator);
  // What may throw std::bad_alloc; positions that have been taken are left by their Turns then.
  void EnqueueAll();
  void Prepare(const std::shared_ptr<Completion>& completion);
  // Nothing has been started: the other ranks are not to wait for it.
  Status FailParts(const Status& status);
  // Hands the calls over.
  static Status Start(Communicator* communicator, Step* step);
  static Status RunInOrder(Part* part);
  static void GiveUp(Part* part, const Status& status);
  Status Run();

  int depth_ = 1;
  std::vector<Part> parts_;  // in the order in which their communicators first came
  std::vector<std::function<Status()>> jobs_;
  std::vector<Enqueued> enqueued_;
  Status spoiled_;
  bool fatal_ = false;
};

}  // namespace inccl

#endif  // INCCL_API_GROUP_H_
