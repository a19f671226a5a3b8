// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "transport/verbs/verbs_transport.h"

namespace inccl {
namespace {

// An adapter takes up to four times 4.096 us * 2^INCCL_IB_TIMEOUT * 8 until it gives up: 2.1 s.
constexpr Time kTrialLimit = 5 * kSecond;

class VerbsFactory final : public TransportFactory {
 public:
  VerbsFactory(const VerbsOptions& options, std::unique_ptr<VerbsTransport> verbs)
      : options_(options), verbs_(std::move(verbs)) {}
  std::vector<std::byte> payload() const override { return verbs_->address(); }
  Status Attach(Peer* peer, std::span<const std::byte> payload) override {
    const PeerInfo& info = peer->info;
    return verbs_->Attach(info.rank, payload,
                          fmt::format("{}@{}:{}", info.rank, info.host, info.pid));
  }
  Status Connect(const Mesh& mesh, const ConnectLimits& /*limits*/) override {
    if (options_.protection == tcp::Protection::kNone) {
      Log(LogLevel::kWarn, LogSubsystem::kTransport,
          "rank {}/{}: INCCL_NET_SECURITY=none: nothing protects the data on the network",
          mesh.rank, mesh.nranks);
    }
    return verbs_->Protect(mesh.data_terms.key, mesh.data_terms.communicator);
  }
  Result<std::vector<PathFailure>> TryPaths(std::span<const int> peers,
                                            const ConnectLimits& limits) override {
    ConnectLimits trial = limits;
    trial.deadline = std::min(limits.deadline, SystemClock().Now() + kTrialLimit);
    return verbs_->TryPaths(peers, trial);
  }
  std::unique_ptr<Transport> Take(bool /*alone*/) override { return std::move(verbs_); }

 private:
  const VerbsOptions options_;
  std::unique_ptr<VerbsTransport> verbs_;
};

}  // namespace

Result<std::unique_ptr<TransportFactory>> MakeVerbsFactory(int rank, int nranks,
                                                           const VerbsOptions& options) {
  Result<std::unique_ptr<VerbsTransport>> verbs = VerbsTransport::Create(rank, nranks, options);
  if (!verbs.ok()) return verbs.status();
  return std::unique_ptr<TransportFactory>(new VerbsFactory(options, *std::move(verbs)));
}

}  // namespace inccl
