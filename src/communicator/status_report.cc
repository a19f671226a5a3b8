// SPDX-License-Identifier: Apache-2.0
#include "communicator/status_report.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/text.h"

namespace inccl {
namespace {

// Texts may quote a peer.
std::string JsonString(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : Escaped(text)) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

const char* NameOf(RankStatus::State state) {
  switch (state) {
    case RankStatus::State::kAnswered: return "answered";
    case RankStatus::State::kSilent: return "silent";
    case RankStatus::State::kLeft: return "left";
    case RankStatus::State::kUnknown: break;
  }
  return "unknown";
}

std::string ConnectionJson(const SocketList::Traffic& traffic) {
  const char* const use = traffic.use == SocketList::Use::kControl ? "control" : "data";
  if (!traffic.tcp) {
    return fmt::format(R"({{"peer":{},"use":"{}","over":"unix"}})", traffic.peer, use);
  }
  return fmt::format(
      R"({{"peer":{},"use":"{}","over":"tcp","sent":{},"received":{},"acknowledged":{},)"
      R"("retransmits":{},"rtt_us":{},"quiet_ms":{}}})",
      traffic.peer, use, traffic.sent, traffic.received, traffic.acknowledged, traffic.retransmits,
      traffic.rtt_us, traffic.quiet_ms);
}

template <typename Items, typename Function>
std::string List(const Items& items, Function&& text_of) {
  std::string text = "[";
  for (const auto& item : items) {
    if (text.size() > 1) text += ',';
    text += text_of(item);
  }
  return text += ']';
}

// The sites of the hosts, and the round trips between sites a and b at [a * count + b].
std::string SitesJson(const Sites& sites) {
  const auto number = [](auto value) { return fmt::format("{}", value); };
  return fmt::format(R"({{"of_host":{},"round_trip_us":{}}})", List(sites.of_host, number),
                     List(sites.round_trip_us, number));
}

}  // namespace

std::string StatusReport::RankJson(int rank, const RankStatus& status) const {
  const Position& position = status.position;
  std::string text = fmt::format(R"({{"rank":{},"process":{},"host":{},"state":"{}")", rank,
                                 JsonString(subject_.peer_names[static_cast<size_t>(rank)]),
                                 subject_.hosts->HostOf(rank), NameOf(status.state));
  if (status.state == RankStatus::State::kSilent) {
    text += fmt::format(R"(,"silent_ms":{})", status.silence / kMillisecond);
  }
  if (!position.place.empty()) {
    text += fmt::format(R"(,"op":{},"in_call":{},"place":{},"stalled_ms":{},"waits_for":{})",
                        position.sequence, position.in_call, JsonString(position.place),
                        position.stalled / kMillisecond,
                        List(position.awaits, [](int peer) { return fmt::format("{}", peer); }));
  }
  return text + "}";
}

std::string StatusReport::StatusJson() {
  int rank = 0;
  const std::string ranks = List(subject_.liveness->RankStatuses(), [&](const RankStatus& status) {
    return RankJson(rank++, status);
  });
  const std::vector<SocketList::Traffic> traffic =
      subject_.sockets == nullptr ? std::vector<SocketList::Traffic>() : subject_.sockets->Read();
  const std::string error = subject_.sticky_error->failed()
                                ? JsonString(subject_.sticky_error->error().message())
                                : std::string("null");
  return fmt::format(
      R"({{"id":"{}","name":{},"rank":{},"transport":"{}","completed":{},"error":{},"sites":{},)"
      R"("ranks":{},"connections":{}}})",
      subject_.id, JsonString(subject_.name), subject_.rank, subject_.transport,
      subject_.completed->load(std::memory_order_relaxed), error, SitesJson(*subject_.sites), ranks,
      List(traffic, ConnectionJson));
}

}  // namespace inccl
