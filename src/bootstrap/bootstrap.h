// SPDX-License-Identifier: Apache-2.0
//
// Joins ranks to a communicator: they meet at a rendezvous, compare their configuration and connect
// to each other. A rank authenticates every socket before it reads anything else from it. Every
// call ends by its deadline, plus one second in which the rendezvous reports the missing ranks. An
// error begins with "rank r/n: init:", names the ranks concerned, and leaves no descriptor open.
#ifndef INCCL_BOOTSTRAP_BOOTSTRAP_H_
#define INCCL_BOOTSTRAP_BOOTSTRAP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/crypto.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/launcher.h"
#include "bootstrap/mesh.h"
#include "bootstrap/rendezvous_client.h"
#include "bootstrap/unique_id.h"
#include "config/variables.h"

namespace inccl {

namespace bootstrap {
class RendezvousClient;
}

struct JoinOptions {
  int rank = 0;
  int nranks = 1;
  int members = 0;  // not 0: this rank is one of so many members of a communicator that grows
  Time deadline = kNever;       // on SystemClock()
  int timeout_ms = 0;           // the length of the deadline, for messages
  Time patience = 5 * kSecond;  // then a log line says what this rank waits for
  std::string agreement;        // must be equal on all ranks; ideally "key=value key=value ..."
  std::vector<int> share_fds;   // every peer gets a copy; at most 16; the caller keeps ownership
  std::vector<std::byte> blob;  // every peer gets a copy; at most kMaxBlob bytes
  // If set: makes what takes the place of `blob` where ranks may be on other hosts.
  std::function<std::vector<std::byte>()> network_blob;
  std::string secret_file;    // INCCL_SECRET_FILE
  std::string host_id;        // INCCL_HOSTID
  std::string socket_ifname;  // INCCL_SOCKET_IFNAME: where to listen for other machines
  // INCCL_TEST_CONTROL_ALL_PAIRS: up to how many ranks all pairs connect; equal on all ranks.
  int all_pairs = ControlGraph::kAllPairs;
  ListenRules listen;     // INCCL_PORT_RANGE, INCCL_SOCKET_ALLOW
  Cancel cancelled = {};  // once requested, the call soon ends with it
  // What a rank does while it connects to the others: it waits for `fd`, too, and then calls
  // `advance`. fd -1: nothing.
  struct Alongside {
    int fd = -1;
    std::function<void()> advance{};
  };
  // Called when the rank knows the others; the peers have no connections yet. May be empty.
  std::function<Result<Alongside>(const Mesh& mesh)> begin = nullptr;
  // What ranks do with their connections before any of them goes on, such as choosing transports;
  // an error of one fails all.
  std::function<Status(Mesh* mesh, bootstrap::RendezvousClient* rendezvous)> prepare = nullptr;
};

// Makes a new id and opens its rendezvous, which serves one communicator while this process lives.
// Uses the variables of sockets, secret_file and init_timeout_ms. `at_once`: the ranks come now or
// never, so the rendezvous ends soon after a failure.
Result<UniqueId> CreateUniqueId(const Environment& environment, bool at_once = false);
// Ends the rendezvous of an id of this process, unless all ranks have joined; ranks that have come
// are told why. No effect on ids of other processes.
void WithdrawUniqueId(const UniqueId& id, const Status& why);

// Any thread; the ranks may be threads or processes of any hosts. Returns kTimeout, naming the
// missing ranks, kInvalidUsage if ranks do not fit together, kRemoteError if one died, or
// kSystemError.
Result<Mesh> JoinWithId(const UniqueId& id, const JoinOptions& options);

// The number of a communicator among those of a job: the place of its creation in the order of such
// calls, which is equal on all ranks. A creation that fails gives its number back, so that ranks
// whose attempts did not meet try again with the same one, unless all ranks had joined.
// Thread-safe.
class CreationNumber {
 public:
  explicit CreationNumber(const std::string& job);  // takes the next one
  ~CreationNumber();
  CreationNumber(const CreationNumber&) = delete;
  CreationNumber& operator=(const CreationNumber&) = delete;
  uint32_t value() const { return value_; }
  // What the creation has come to.
  void Settle(const Status& joined);

 private:
  const std::string job_;
  const uint32_t value_;
};

// The same for the processes of a launcher's job, which rank 0 serves; rank and nranks of `options`
// must be the launcher's. `number`: a CreationNumber.
// On this host: at a unix socket that is named after the job. Ranks trust processes of the same
// user and container (pid and user namespace); with a secret file, those that know its content.
Result<Mesh> JoinWithLauncher(const Launcher& launcher, uint32_t number,
                              const JoinOptions& options);
// On any hosts: at `address` (INCCL_COMM_ID). Ranks trust those that know the content of the secret
// file. A loopback address without one only names the job: its ranks then meet as those of
// JoinWithLauncher do.
Result<Mesh> JoinAtAddress(const std::string& address, const Launcher& launcher, uint32_t number,
                           const JoinOptions& options);
// On any hosts: by an id that rank 0 makes, with `environment`, and puts into the launcher's store.
// Ranks trust those that the launcher lets read it.
Result<Mesh> JoinByStore(LauncherStore* store, const Launcher& launcher, uint32_t number,
                         const Environment& environment, const JoinOptions& options);

// The name of the unix socket at which the ranks of a launcher's job meet. It follows from the
// job's name and is not secret.
Result<std::string> RendezvousName(const Launcher& launcher);

}  // namespace inccl

namespace inccl::bootstrap {

// Joins ranks at a rendezvous, however its address and key are known.

// Registers at the rendezvous and connects to the other ranks.
Result<Mesh> Join(const RootTarget& target, const JoinOptions& options);

Status CheckOptions(const JoinOptions& options);

// K = HKDF(secret | content of the secret file, salt: nonce)
Result<Key> DeriveKey(Bytes secret, const std::string& secret_file, Bytes nonce);

// "rank 1/4: init: ..."
Status OfRank(const JoinOptions& options, const Status& status);

std::string Hex(Bytes bytes);

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_BOOTSTRAP_H_
