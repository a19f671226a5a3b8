// SPDX-License-Identifier: Apache-2.0
//
// Selects the transports of a communicator: each pair of ranks takes the first of INCCL_TRANSPORT
// (default: shm, verbs, ucx, tcp) that both ranks can use for this pair. Ranks exchange what they
// could make, so all of them compute the same table of pairs. If a pair has no transport, every
// rank reports both ranks and each transport's reason.
#ifndef INCCL_INIT_TRANSPORT_SELECTION_H_
#define INCCL_INIT_TRANSPORT_SELECTION_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/rendezvous_client.h"
#include "config/variables.h"
#include "topology/host_map.h"
#include "transport/composite/composite_transport.h"
#include "transport/transport.h"
#include "transport/transport_factory.h"

namespace inccl {

// The transports that INCCL_TRANSPORT may name, one row each.
struct FactoryArgs {
  int rank = 0, nranks = 1;
  const Environment* environment = nullptr;
  bool for_device = false;  // the rank works on a device
};

// Where the ranks run. Hosts are what INCCL_HOSTID says; machines have their own network, so unix
// sockets and shared memory end there.
struct Places {
  const HostMap& hosts;
  const HostMap& machines;
  const Environment& environment;
};

struct TransportRow {
  const char* name;
  Result<std::unique_ptr<TransportFactory>> (*make)(const FactoryArgs& args);
  // Transport::caps() of what `make` makes, on any rank.
  Caps (*caps)();
  // Why two ranks cannot use it, whatever their processes can do; "" if nothing prevents it.
  std::string (*unusable)(const Places& places, int a, int b);
  // A rank attaches to live peers, so all ranks must have attached before any leaves.
  bool attach_needs_peers;
  // Whether data gets from rank to rank shows only when it is tried (TransportFactory::TryPaths).
  bool tries_paths;
  // TransportFactory::Connect waits for the peers' calls.
  bool connects;
  // Whether a rank makes it, or finds that it cannot, in no time.
  bool (*cheap)();
};

// In the order in which the parts of a composite transport are polled. INCCL_TRANSPORT has been
// checked, so every name has a row.
const TransportRow& RowOf(std::string_view name);

// The names in INCCL_TRANSPORT, each once; `standard` if it is not set.
std::vector<std::string> TransportNames(const Environment& environment,
                                        std::vector<std::string> standard);
// For messages: adds why `name` cannot be used, and " of INCCL_TRANSPORT=..." if it is set.
void AddReason(std::string_view name, const std::string& why, std::string* reasons);
std::string OfVariable(const Environment& environment);

// Bytes of slots that a rank commits when it is created.
size_t CommitAhead(int nranks, bool for_device);

// Whether one rank could make one transport. Sent to peers.
struct TransportOffer {
  std::string transport;
  Status status;                   // OK, or why the rank could not make it or attach to its peers
  std::vector<std::byte> payload;  // an address, or empty
  bool device_slices = false;      // the rank has a device and no slice size was given
  uint32_t link_mbps = 0;          // bootstrap::LinkMbps of the rank

  std::vector<std::byte> Encode() const;
  // Returns kInternalError if the bytes are malformed.
  static Result<TransportOffer> Decode(std::span<const std::byte> bytes);
};

// What a rank found out about its paths, as a payload: the first failure's text stands for all.
std::vector<std::byte> EncodePathFailures(std::span<const PathFailure> failures);
// Returns kInternalError if the bytes are malformed or name no rank of `nranks`.
Result<std::vector<PathFailure>> DecodePathFailures(std::span<const std::byte> bytes, int nranks);

// The ranks have their connections, and wait for each other.
struct Joining {
  Mesh* mesh;
  bootstrap::RendezvousClient* rendezvous;
  ConnectLimits limits;
};

// The selection of one rank, which is a process or joins like one. Call Advertise, join, then
// Choose.
class TransportSelection {
 public:
  // `device_slices`: TransportOffer::device_slices of this rank.
  TransportSelection(int rank, int nranks, const Environment& environment, bool device_slices);

  // Makes the first transport and puts its offer into `options`. Where ranks may be on other hosts
  // the join carries those of further transports, too, whose exchange would take a round trip each.
  // `options` is not used after this selection has gone.
  void Advertise(JoinOptions* options);
  // Reads the offers that came with the join. Then Choose.
  Status TakeOffers(const Mesh& mesh);
  // Then, while the ranks connect for control messages: begins to connect for data, where the
  // offers alone decide over which transport.
  JoinOptions::Alongside Begin(const Mesh& mesh, const HostMap& hosts, const ConnectLimits& limits);
  // Attaches to each peer over the first transport that the two ranks can use. Exchanges the offers
  // of a further transport only if a pair of ranks still needs one. Returns a composite transport
  // if the pairs use several. The text of an error begins with "rank r/n: init:".
  Result<std::unique_ptr<Transport>> Choose(const Joining& joining, const HostMap& hosts);
  // After TakeOffers: whether every rank's offer has device_slices.
  bool all_device_slices() const { return device_slices_; }
  // After TakeOffers: the least TransportOffer::link_mbps; 0 if a rank does not know its own.
  uint32_t slowest_link_mbps() const { return link_mbps_; }

 private:
  // One transport of the list.
  struct Attempt {
    const TransportRow* row = nullptr;
    std::vector<Status> of_rank;                         // why a rank cannot use it
    std::map<std::pair<int, int>, std::string> no_path;  // by pair: why data does not get through
    std::unique_ptr<TransportFactory> factory;           // nullptr: no pair of this rank uses it
    bool used = false;                                   // by any pair
  };
  using Offers = std::vector<TransportOffer>;

  // Makes the factory of a transport into *made; the offer has the error.
  TransportOffer Make(const std::string& name, std::unique_ptr<TransportFactory>* made) const;
  Result<Offers> Exchange(const Joining& joining, const TransportOffer& mine) const;
  // Tries the next transport: assigns it to the pairs that have none and can use it.
  Status Try(const std::string& name, const Joining& joining, const Places& places);
  // This rank's offer of a further transport; an empty one if this rank does not need it.
  TransportOffer OfferOf(const std::string& name, bool needed,
                         std::unique_ptr<TransportFactory>* made);
  // What every peer gets: the first offer, and those that have been made.
  std::vector<std::byte> Blob() const;
  // Attaches to this rank's peers of unassigned pairs that can use the transport, and connects.
  Status Attach(const Attempt& attempt, const Joining& joining, const Places& places,
                const Offers& offers) const;
  // Tries the paths of this rank's pairs and exchanges what came of it, so that both ranks of a
  // pair know.
  Status TryPaths(Attempt* attempt, const Joining& joining, const Places& places);
  void Assign(int number, const Places& places);
  bool CanUse(const Attempt& attempt, const Places& places, int a, int b) const;
  // Whether a pair without a transport can use this one, or (`rank` >= 0) a pair of that rank.
  bool Needed(const Attempt& attempt, const Places& places, int rank = -1) const;
  // Why rank `first` failed, and how many others have.
  static std::string Failure(const Attempt& attempt, int first);
  // Why the first pair has no path, and how many others have none.
  static std::string PathFailures(const Attempt& attempt);
  // The error if a pair has no transport.
  Status CheckComplete(const Places& places) const;
  Status NoneFor(int a, int b, int other_pairs, const Places& places) const;
  bool IsAbsent(const Attempt& attempt) const;
  void WarnOfFailures(const char* name) const;
  Result<std::unique_ptr<Transport>> Compose();
  Status Error(const Status& status) const;

  const int rank_, nranks_;
  const Environment environment_;
  bool device_slices_;
  uint32_t link_mbps_;
  std::vector<std::string> names_;  // in order of preference
  std::vector<Attempt> attempts_;   // by names_, those that have been tried
  PairTable table_;                 // numbers of attempts_
  // What this rank has made before it joins: the first transport, shm, because only the join passes
  // descriptors, and where there may be other hosts, those that it makes cheaply.
  struct Made {
    std::unique_ptr<TransportFactory> factory;
    TransportOffer offer;
    bool advertised = false;
  };
  std::map<std::string, Made> made_;
  std::map<std::string, Offers> offers_;  // by rank, of the transports that all ranks advertise
};

}  // namespace inccl

#endif  // INCCL_INIT_TRANSPORT_SELECTION_H_
