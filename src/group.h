// SPDX-License-Identifier: Apache-2.0
//
// What a thread collects between ccl_group_start and ccl_group_end.
#ifndef INCCL_GROUP_H_
#define INCCL_GROUP_H_

#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "batch.h"
#include "communicator.h"

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
  void Add(const std::shared_ptr<Communicator>& communicator, const std::shared_ptr<Stream>& stream,
           const PointCall& call);
  // A job of its own thread: creation of a communicator.
  void Add(std::function<Status()> job) { jobs_.push_back(std::move(job)); }
  // A call of the group was wrong: nothing will be started.
  void Spoil(const Status& status) {
    if (spoiled_.ok()) spoiled_ = status;
  }

 private:
  struct Part {
    std::shared_ptr<Communicator> communicator;
    std::vector<std::shared_ptr<Stream>> streams;  // each once
    bool waits = false;                            // has calls without a stream
    Batch batch;
    Status refused;  // by one of the streams
  };

  Part& PartOf(const std::shared_ptr<Communicator>& communicator,
               const std::shared_ptr<Stream>& stream);
  Status RunJobs();
  // A place on the stream, for all parts that go there.
  struct Entered {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<Turn> turn;  // nullptr: the stream has refused, and says why
    Status status;
  };
  std::vector<Entered> EnterAll();
  // The places of a part go into its batch.
  static void TakeTurns(const std::vector<Entered>& all, Part* part);
  Status RunParts();
  // Nothing of the parts has been started: the other ranks are not to wait for it.
  Status FailParts(const Status& status);

  int depth_ = 1;
  std::vector<Part> parts_;  // in the order in which their communicators first came
  std::vector<std::function<Status()>> jobs_;
  Status spoiled_;
};

}  // namespace inccl

#endif  // INCCL_GROUP_H_
