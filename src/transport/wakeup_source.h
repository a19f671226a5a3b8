// SPDX-License-Identifier: Apache-2.0
//
// The part of a wait that belongs to one transport, where a rank sleeps on several descriptors at
// once.
#ifndef INCCL_TRANSPORT_WAKEUP_SOURCE_H_
#define INCCL_TRANSPORT_WAKEUP_SOURCE_H_

namespace inccl {

// The owner calls Arm, looks once more for work, calls Ready, sleeps until a descriptor is readable
// and calls Disarm. It does not call Ready, or does not sleep, if the look has found work. Work
// that the look has not found makes Ready return false or the descriptor readable.
class WakeupSource {
 public:
  virtual ~WakeupSource() = default;
  // -1: the transport cannot wake a rank, which therefore sleeps for short times only.
  virtual int fd() const = 0;
  virtual void Arm() {}
  // False: the rank looks for work again instead of sleeping.
  virtual bool Ready() { return true; }
  // `readable`: the sleep has ended, and fd() is readable.
  virtual void Disarm(bool /*readable*/) {}
};

}  // namespace inccl

#endif  // INCCL_TRANSPORT_WAKEUP_SOURCE_H_
