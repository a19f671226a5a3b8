// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/connect_peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bootstrap/connector.h"
#include "bootstrap/gathering.h"
#include "bootstrap/rendezvous_client.h"

namespace inccl::bootstrap {
namespace {

Status Run(const ConnectTerms& terms, Connector* connector) {
  while (true) {
    if (Status status = connector->Failure(); !status.ok()) return status;
    const std::vector<int> missing = connector->Missing();
    if (missing.empty()) return Status::Ok();
    if (Status status = terms.check(missing); !status.ok()) {
      return {status.code(), status.message() + connector->LastFailure()};
    }
    const Time now = SystemClock().Now();
    if (now >= terms.deadline) {
      return TimeoutError(fmt::format("no connection with {} within {} ms{}", ListRanks(missing),
                                      terms.timeout_ms, connector->LastFailure()));
    }
    const Result<int> polled = connector->Poll(std::min(terms.deadline, now + kCancelLag));
    if (!polled.ok()) return polled.status();
  }
}

}  // namespace

Status ConnectPeers(ConnectTerms terms, const std::vector<LinkPlan>& plans,
                    std::vector<Listener> listeners, std::vector<Link>* links,
                    std::vector<UniqueFd>* open) {
  terms.expected = plans.size();
  Connector connector(&terms, std::move(listeners));
  for (const LinkPlan& plan : plans) connector.Begin(plan);
  if (Status status = Run(terms, &connector); !status.ok()) {
    connector.MoveTo(open);
    return status;
  }
  for (Connector::Ended& ended : connector.TakeEnded()) {
    links->push_back(std::move(ended.link).value());
  }
  return Status::Ok();
}

}  // namespace inccl::bootstrap
