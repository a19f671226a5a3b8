// SPDX-License-Identifier: Apache-2.0
//
// Tells inccl-status what the communicators of this process do. The control thread listens at a
// unix socket, one per process, in a directory that only this user may enter, and answers processes
// of this user. Nothing is measured or written unless a client asks.
//
// A client sends "local\n" or "all\n" and reads JSON until the end of file:
//   {"pid":4711,"communicators":[OBJECT of each source]}
// Before the answer to "all", each source asks the other ranks where they are.
#ifndef INCCL_CONTROL_STATUS_SERVER_H_
#define INCCL_CONTROL_STATUS_SERVER_H_

#include <string>

#include "base/status.h"

namespace inccl {

// One communicator. The control thread calls the methods, which must not wait.
class StatusSource {
 public:
  virtual ~StatusSource() = default;
  virtual void AskPeers() = 0;
  // True if all ranks have answered since AskPeers, or will not.
  virtual bool PeersHaveAnswered() = 0;
  virtual std::string StatusJson() = 0;
};

// Where the processes of this user listen: "inccl" in `runtime_dir` (XDG_RUNTIME_DIR; may be null)
// if that is a directory of this user, else /tmp/inccl-UID.
std::string StatusDirectory(const char* runtime_dir);

// Any thread but the control thread. The first source makes the socket, in `directory`, and removes
// what killed processes left there. An error means that inccl-status does not see this process.
Status PublishStatus(const std::string& directory, StatusSource* source);
// Afterwards no method of the source runs or will run. The last source removes the socket. Ignores
// a source that is not published.
void WithdrawStatus(StatusSource* source);

}  // namespace inccl

#endif  // INCCL_CONTROL_STATUS_SERVER_H_
