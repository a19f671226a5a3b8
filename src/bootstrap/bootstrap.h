// SPDX-License-Identifier: Apache-2.0
//
// How ranks become a communicator: they meet at a rendezvous, see that they agree, and connect to
// each other. Every socket is authenticated before anything else is read from it. Every call ends
// by its deadline (and a second of grace, in which the rendezvous says who was missing); an error
// begins with "rank r/n: init:" and names the ranks concerned, and leaves no descriptor.
#ifndef INCCL_BOOTSTRAP_BOOTSTRAP_H_
#define INCCL_BOOTSTRAP_BOOTSTRAP_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/launcher.h"
#include "bootstrap/mesh.h"
#include "bootstrap/unique_id.h"
#include "config/variables.h"

namespace inccl {

struct JoinOptions {
  int rank = 0;
  int nranks = 1;
  Time deadline = kNever;       // on SystemClock()
  int timeout_ms = 0;           // what the deadline came from, for texts
  std::string agreement;        // must be equal on all ranks; best "key=value key=value ..."
  std::vector<int> share_fds;   // every peer gets a copy of these; at most 16; stay the caller's
  std::vector<std::byte> blob;  // every peer gets a copy of it; at most kMaxBlob bytes
  std::string secret_file;      // INCCL_SECRET_FILE
  std::string host_id;          // INCCL_HOSTID
  const std::atomic<bool>* cancelled = nullptr;  // may become true: end with an error, soon
};

// A new id, and the thread that serves it: one communicator, from this process, as long as the
// process lives. Uses socket_ifname, secret_file and init_timeout_ms.
// `abandoned`, unless null: the ranks come at once or never, so the rendezvous ends also if nobody
// comes, and soon after a failure or after this has turned true.
Result<UniqueId> CreateUniqueId(const Environment& environment,
                                std::shared_ptr<const std::atomic<bool>> abandoned = nullptr);

// Any thread; the ranks may be threads or processes of this host. kTimeout naming the ranks that
// are missing, kInvalidUsage if ranks do not fit together, kRemoteError if one died, kSystemError.
Result<Mesh> JoinWithId(const UniqueId& id, const JoinOptions& options);

// The same for the processes of a launcher's job on this host; rank and nranks of `options` must be
// the launcher's. `init_index` counts the calls in this process, alike on all ranks. Processes of
// the same user and container (pid and user namespace) are trusted; with a secret file, those that
// know its content.
Result<Mesh> JoinWithLauncher(const Launcher& launcher, int init_index, const JoinOptions& options);

// The names of unix sockets at which the ranks of a launcher's job meet: rank 0 listens at the
// first that no other user holds. Whoever knows the job's name can tell them.
Result<std::vector<std::string>> RendezvousNames(const Launcher& launcher, int init_index);

}  // namespace inccl

#endif  // INCCL_BOOTSTRAP_BOOTSTRAP_H_
