// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include "transport/ucx/ucx_transport.h"

namespace inccl {
namespace {

class UcxFactory final : public TransportFactory {
 public:
  explicit UcxFactory(std::unique_ptr<UcxTransport> ucx) : ucx_(std::move(ucx)) {}
  std::vector<std::byte> payload() const override {
    return {ucx_->address().begin(), ucx_->address().end()};
  }
  Status Attach(Peer* peer, std::span<const std::byte> payload) override {
    return ucx_->Attach(peer->info.rank, payload);
  }
  std::unique_ptr<Transport> Take(bool /*alone*/) override { return std::move(ucx_); }

 private:
  std::unique_ptr<UcxTransport> ucx_;
};

}  // namespace

Result<std::unique_ptr<TransportFactory>> MakeUcxFactory(int rank, int nranks,
                                                         const UcxOptions& options) {
  Result<std::unique_ptr<UcxTransport>> ucx = UcxTransport::Create(rank, nranks, options);
  if (!ucx.ok()) return ucx.status();
  return std::unique_ptr<TransportFactory>(new UcxFactory(*std::move(ucx)));
}

}  // namespace inccl
