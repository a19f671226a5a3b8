// SPDX-License-Identifier: Apache-2.0
//
// What inccl-status shows of one communicator (docs/tools.md describes the fields).
#ifndef INCCL_COMMUNICATOR_STATUS_REPORT_H_
#define INCCL_COMMUNICATOR_STATUS_REPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/socket_list.h"
#include "control/status_socket.h"
#include "failure/liveness.h"
#include "failure/sticky_error.h"
#include "topology/host_map.h"

namespace inccl {

class StatusReport final : public StatusSource {
 public:
  // The pointers outlive this object.
  struct Subject {
    std::string id, name, transport;
    int rank = 0;
    std::vector<std::string> peer_names;
    const HostMap* hosts = nullptr;
    const Sites* sites = nullptr;
    std::shared_ptr<const SocketList> sockets;  // may be null
    Liveness* liveness = nullptr;
    const StickyError* sticky_error = nullptr;
    const std::atomic<uint64_t>* completed = nullptr;
  };

  explicit StatusReport(Subject subject) : subject_(std::move(subject)) {}

  void AskPeers() override { subject_.liveness->AskAll(); }
  bool PeersHaveAnswered() override { return subject_.liveness->HasAnswers(); }
  std::string StatusJson() override;

 private:
  std::string RankJson(int rank, const RankStatus& status) const;

  const Subject subject_;
};

}  // namespace inccl

#endif  // INCCL_COMMUNICATOR_STATUS_REPORT_H_
