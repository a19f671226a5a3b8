// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/shm_factory.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace inccl {
namespace {

class ShmFactory final : public TransportFactory {
 public:
  ShmFactory(int rank, int nranks, std::unique_ptr<ShmTransport> shm)
      : rank_(rank), nranks_(nranks), shm_(std::move(shm)) {}
  std::vector<int> fds_to_share() const override { return shm_->fds_to_share(); }
  Status Attach(Peer* peer, std::span<const std::byte> /*payload*/) override {
    const size_t expected = shm_->fds_to_share().size();
    if (peer->fds.size() != expected) {
      return InternalError(fmt::format("rank {}/{}: peer {} shared {} descriptors instead of {}",
                                       rank_, nranks_, peer->info.rank, peer->fds.size(),
                                       expected));
    }
    return shm_->Attach(peer->info.rank, std::move(peer->fds[0]), std::move(peer->fds[1]),
                        std::move(peer->fds[2]), std::move(peer->fds[3]));
  }
  std::unique_ptr<Transport> Take(bool alone) override {
    if (alone) shm_->CloseEventFds();
    return std::move(shm_);
  }

 private:
  const int rank_, nranks_;
  std::unique_ptr<ShmTransport> shm_;
};

}  // namespace

Result<std::unique_ptr<TransportFactory>> MakeShmFactory(int rank, int nranks,
                                                         const ShmOptions& options) {
  Result<std::unique_ptr<ShmTransport>> shm = ShmTransport::Create(rank, nranks, options);
  if (!shm.ok()) return shm.status();
  return std::unique_ptr<TransportFactory>(new ShmFactory(rank, nranks, *std::move(shm)));
}

}  // namespace inccl
