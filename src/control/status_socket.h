// SPDX-License-Identifier: Apache-2.0
//
// The files at which processes listen for inccl-status: DIRECTORY/PID-RANDOM.
#ifndef INCCL_CONTROL_STATUS_SOCKET_H_
#define INCCL_CONTROL_STATUS_SOCKET_H_

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"

namespace inccl::control {

// OK for a directory, no link, of this user that no other user may enter.
Status IsOwnDirectory(const std::string& directory);

// Makes the directory, if it is missing, and a listening socket in it.
Result<UniqueFd> ListenForStatus(const std::string& directory, std::string* path);

// *error: 0 or the errno of a failed connect; ECONNREFUSED: the process has ended.
Result<UniqueFd> ConnectToStatus(const std::string& path, int* error);

// True for a socket with a name that ListenForStatus gives. Other files are not touched.
bool IsStatusSocket(const std::string& path);

// For such a socket: removes it if no process listens there. Returns true if it is gone.
bool RemoveIfStale(const std::string& path);

// Calls RemoveIfStale for the sockets of processes that, by their number, have ended, so that the
// start of many ranks does not connect all of them to each other.
void RemoveStaleIn(const std::string& directory);

}  // namespace inccl::control

namespace inccl {

// The client's side of status_socket.h.

// The sockets in a directory of this user; those of processes that have ended are removed. Empty
// if there is no such directory.
std::vector<std::string> FindStatusSockets(const std::string& directory);

// Sends `request`, "local" or "all", and returns the answer. Returns kTimeout if the process does
// not answer (it is stopped), and kSystemError if it has ended.
Result<std::string> AskForStatus(const std::string& path, const std::string& request, Time limit);

// Tells inccl-status what the communicators of this process do. The control thread listens at a
// unix socket, one per process, in a directory that only this user may enter, and answers processes
// of this user. Nothing is measured or written unless a client asks.
//
// A client sends "local\n" or "all\n" and reads JSON until the end of file:
//   {"pid":4711,"communicators":[OBJECT of each source]}
// Before the answer to "all", each source asks the other ranks where they are.

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

#endif  // INCCL_CONTROL_STATUS_SOCKET_H_
