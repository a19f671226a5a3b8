// SPDX-License-Identifier: Apache-2.0
//
// The files at which processes listen for inccl-status: DIRECTORY/PID-RANDOM.
#ifndef INCCL_CONTROL_STATUS_SOCKET_H_
#define INCCL_CONTROL_STATUS_SOCKET_H_

#include <string>

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

#endif  // INCCL_CONTROL_STATUS_SOCKET_H_
