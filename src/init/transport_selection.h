// SPDX-License-Identifier: Apache-2.0
//
// Which transport joins the ranks of a communicator: the first of INCCL_TRANSPORT (without it: shm,
// then ucx) that every rank can make. Ranks tell each other what they could make, so all of them
// choose the same, and where none is left all of them say who could not and why.
#ifndef INCCL_INIT_TRANSPORT_SELECTION_H_
#define INCCL_INIT_TRANSPORT_SELECTION_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/exchange.h"
#include "config/variables.h"
#include "transport/transport.h"

namespace inccl {

// What one rank says of one transport. Sent to peers.
struct TransportOffer {
  std::string transport;
  Status status;                   // why not
  std::vector<std::byte> payload;  // an address, or nothing
  bool device_slices = false;      // the rank has a device, and takes slices as large as it likes

  std::vector<std::byte> Encode() const;
  // kInternalError if the bytes are none.
  static Result<TransportOffer> Decode(std::span<const std::byte> bytes);
};

// Whatever can join the ranks of one communicator.
class TransportFactory {
 public:
  virtual ~TransportFactory() = default;
  virtual std::vector<int> fds_to_share() const { return {}; }
  virtual std::vector<std::byte> payload() const { return {}; }
  virtual Status Attach(Peer* peer, std::span<const std::byte> payload) = 0;
  // Peers must not be gone before this rank has attached to them.
  virtual bool attach_needs_peers() const { return false; }
  virtual std::unique_ptr<Transport> Take() = 0;
};

// One rank that is a process, or will be treated as one. In this order: Advertise, join, Choose.
class TransportSelection {
 public:
  // `device_slices`: of this rank, for its offers.
  TransportSelection(int rank, int nranks, const Environment& environment, bool device_slices);

  // Makes the first transport and puts it into `options`.
  void Advertise(JoinOptions* options);
  // Attaches to the peers over the transport that all ranks can use, after further rounds with them
  // if the first is not. An error begins with "rank r/n: init:".
  Result<std::unique_ptr<Transport>> Choose(Mesh* mesh, const ExchangeTerms& terms);
  // After Choose: of every rank's offer.
  bool all_device_slices() const { return device_slices_; }

 private:
  // Into *made, unless the offer says why not.
  TransportOffer Make(const std::string& name, std::unique_ptr<TransportFactory>* made) const;
  // OK if every rank could; else appends to the reasons who could not.
  Status CheckAll(const std::string& name, std::span<const TransportOffer> offers);
  Result<std::vector<TransportOffer>> Exchange(const Mesh& mesh, const TransportOffer& mine,
                                               const ExchangeTerms& terms) const;
  Status AttachAll(Mesh* mesh, std::span<const TransportOffer> offers);
  Status Error(const Status& status) const;
  Status NoneLeft() const;

  const int rank_, nranks_;
  const Environment environment_;
  bool device_slices_;
  std::vector<std::string> names_;  // in the order of preference
  // The one that is tried, and shm if it is not the first: descriptors travel with the joining
  // only.
  std::unique_ptr<TransportFactory> current_, later_shm_;
  TransportOffer later_offer_;
  std::string reasons_;  // why those before did not do
  Code code_ = Code::kInvalidUsage;
};

// The ends of all ranks of one process: the first of INCCL_TRANSPORT (without it: loopback) that
// can be made. `for_device`: slots for calls on memory of devices are to be there at once.
Result<std::vector<std::unique_ptr<Transport>>> MakeThreadTransports(int nranks,
                                                                     const Environment& environment,
                                                                     bool for_device = false);

}  // namespace inccl

#endif  // INCCL_INIT_TRANSPORT_SELECTION_H_
