// SPDX-License-Identifier: Apache-2.0
//
// Joins ranks to a communicator: they meet at a rendezvous, compare their configuration and connect
// to each other. A rank authenticates every socket before it reads anything else from it. Every
// call ends by its deadline, plus one second in which the rendezvous reports the missing ranks. An
// error begins with "rank r/n: init:", names the ranks concerned, and leaves no descriptor open.
#ifndef INCCL_BOOTSTRAP_BOOTSTRAP_H_
#define INCCL_BOOTSTRAP_BOOTSTRAP_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/control_graph.h"
#include "bootstrap/launcher.h"
#include "bootstrap/launcher_store.h"
#include "bootstrap/listen_rules.h"
#include "bootstrap/mesh.h"
#include "bootstrap/unique_id.h"
#include "config/variables.h"

namespace inccl {

struct JoinOptions {
  int rank = 0;
  int nranks = 1;
  Time deadline = kNever;       // on SystemClock()
  int timeout_ms = 0;           // the length of the deadline, for messages
  Time patience = 5 * kSecond;  // then a log line says what this rank waits for
  std::string agreement;        // must be equal on all ranks; ideally "key=value key=value ..."
  std::vector<int> share_fds;   // every peer gets a copy; at most 16; the caller keeps ownership
  std::vector<std::byte> blob;  // every peer gets a copy; at most kMaxBlob bytes
  std::string secret_file;      // INCCL_SECRET_FILE
  std::string host_id;          // INCCL_HOSTID
  std::string socket_ifname;    // INCCL_SOCKET_IFNAME: where to listen for other machines
  // INCCL_CONTROL_ALL_PAIRS: up to how many ranks all pairs connect; equal on all ranks.
  int all_pairs = ControlGraph::kAllPairs;
  ListenRules listen;                            // INCCL_PORT_RANGE, INCCL_SOCKET_ALLOW
  const std::atomic<bool>* cancelled = nullptr;  // once true, the call soon ends with an error
};

// Makes a new id and starts the thread of its rendezvous, which serves one communicator while this
// process lives. Uses the variables of sockets, secret_file and init_timeout_ms. If `abandoned` is
// not null, the ranks come at once or never: the rendezvous then also ends if no rank comes, and
// soon after a failure or after *abandoned has become true.
Result<UniqueId> CreateUniqueId(const Environment& environment,
                                std::shared_ptr<const std::atomic<bool>> abandoned = nullptr);

// Any thread; the ranks may be threads or processes of this host. Returns kTimeout, naming the
// missing ranks, kInvalidUsage if ranks do not fit together, kRemoteError if one died, or
// kSystemError.
Result<Mesh> JoinWithId(const UniqueId& id, const JoinOptions& options);

// The same for the processes of a launcher's job on this host; rank and nranks of `options` must be
// the launcher's. `init_index` numbers the calls in this process, equally on all ranks. Ranks trust
// processes of the same user and container (pid and user namespace); with a secret file, those that
// know its content.
Result<Mesh> JoinWithLauncher(const Launcher& launcher, int init_index, const JoinOptions& options);

// The same for a launcher's job on any hosts: rank 0 listens at `address` (INCCL_COMM_ID). Ranks
// trust those that know the content of the secret file. A loopback address without one only names
// the job: its ranks then meet as those of JoinWithLauncher do.
Result<Mesh> JoinAtAddress(const std::string& address, const Launcher& launcher, int init_index,
                           const JoinOptions& options);

// The same, where the launcher has a store: rank 0 makes a unique id, with `environment`, and puts
// it there. Ranks trust those that the launcher lets read it.
Result<Mesh> JoinByStore(LauncherStore* store, const Launcher& launcher, int init_index,
                         const Environment& environment, const JoinOptions& options);

// The names of the unix sockets at which the ranks of a launcher's job meet: rank 0 listens at the
// first that no other user holds. They follow from the job's name and are not secret.
Result<std::vector<std::string>> RendezvousNames(const Launcher& launcher, int init_index);

}  // namespace inccl

#endif  // INCCL_BOOTSTRAP_BOOTSTRAP_H_
