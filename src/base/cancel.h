// SPDX-License-Identifier: Apache-2.0
//
// What ends the creation of a communicator early: a flag that another thread sets, and why.
#ifndef INCCL_BASE_CANCEL_H_
#define INCCL_BASE_CANCEL_H_

#include <atomic>
#include <functional>
#include <utility>

#include "base/status.h"

namespace inccl {

class Cancel {
 public:
  Cancel() = default;
  // Waits look at *flag again and again; nullptr: never. `why` is called once it is true.
  Cancel(const std::atomic<bool>* flag,  // NOLINT(google-explicit-constructor): a flag is one
         std::function<Status()> why = nullptr)
      : flag_(flag), why_(std::move(why)) {}

  bool possible() const { return flag_ != nullptr; }
  bool requested() const { return flag_ != nullptr && flag_->load(); }
  // OK until then.
  Status Check() const {
    if (!requested()) return Status::Ok();
    return why_ ? why_() : RemoteError("this rank ended the creation of the communicator");
  }

 private:
  const std::atomic<bool>* flag_ = nullptr;
  std::function<Status()> why_;
};

}  // namespace inccl

#endif  // INCCL_BASE_CANCEL_H_
