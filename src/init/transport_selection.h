// SPDX-License-Identifier: Apache-2.0
//
// Selects the transport of a communicator: the first of INCCL_TRANSPORT (default: shm, then ucx)
// that every rank can make. Ranks exchange which transports they could make, so all of them choose
// the same one. If there is none, every rank reports which ranks failed and why.
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

// Whether one rank could make one transport. Sent to peers.
struct TransportOffer {
  std::string transport;
  Status status;                   // OK, or why the rank could not make it
  std::vector<std::byte> payload;  // an address, or empty
  bool device_slices = false;      // the rank has a device and no slice size was given

  std::vector<std::byte> Encode() const;
  // Returns kInternalError if the bytes are malformed.
  static Result<TransportOffer> Decode(std::span<const std::byte> bytes);
};

// Makes one transport and attaches it to the peers.
class TransportFactory {
 public:
  virtual ~TransportFactory() = default;
  virtual std::vector<int> fds_to_share() const { return {}; }
  virtual std::vector<std::byte> payload() const { return {}; }
  virtual Status Attach(Peer* peer, std::span<const std::byte> payload) = 0;
  // True if this rank attaches to live peers, so that all ranks must have attached before any
  // leaves.
  virtual bool attach_needs_peers() const { return false; }
  virtual std::unique_ptr<Transport> Take() = 0;
};

// The selection of one rank, which is a process or joins like one. Call Advertise, join, then
// Choose.
class TransportSelection {
 public:
  // `device_slices`: TransportOffer::device_slices of this rank.
  TransportSelection(int rank, int nranks, const Environment& environment, bool device_slices);

  // Makes the first transport and puts its offer into `options`.
  void Advertise(JoinOptions* options);
  // Attaches to the peers over the first transport that all ranks can use. Exchanges further offers
  // with them if that is not the first of the list. The text of an error begins with "rank r/n:
  // init:".
  Result<std::unique_ptr<Transport>> Choose(Mesh* mesh, const ExchangeTerms& terms);
  // After Choose: whether every rank's offer has device_slices.
  bool all_device_slices() const { return device_slices_; }

 private:
  // Makes the factory of a transport into *made; the offer has the error.
  TransportOffer Make(const std::string& name, std::unique_ptr<TransportFactory>* made) const;
  // Returns OK if every rank could make the transport; else adds the failed ranks to reasons_.
  Status CheckAll(const std::string& name, std::span<const TransportOffer> offers);
  Result<std::vector<TransportOffer>> Exchange(const Mesh& mesh, const TransportOffer& mine,
                                               const ExchangeTerms& terms) const;
  Status AttachAll(Mesh* mesh, std::span<const TransportOffer> offers);
  Status Error(const Status& status) const;
  Status NoneLeft() const;

  const int rank_, nranks_;
  const Environment environment_;
  bool device_slices_;
  std::vector<std::string> names_;  // in order of preference
  // The transport that is tried, and shm if it is not the first one, because only the join passes
  // descriptors.
  std::unique_ptr<TransportFactory> current_, later_shm_;
  TransportOffer later_offer_;
  std::string reasons_;  // why the earlier transports were not chosen
  Code code_ = Code::kInvalidUsage;
};

// Makes the transports of all ranks of one process: the first of INCCL_TRANSPORT (default:
// loopback) that can be made. `for_device`: commits the slots for calls on device memory at once.
Result<std::vector<std::unique_ptr<Transport>>> MakeThreadTransports(int nranks,
                                                                     const Environment& environment,
                                                                     bool for_device = false);

}  // namespace inccl

#endif  // INCCL_INIT_TRANSPORT_SELECTION_H_
