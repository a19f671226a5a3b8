// SPDX-License-Identifier: Apache-2.0
#include "tools/status/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace inccl::tools {
namespace {

std::string RankList(const Json& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += fmt::format("{} {}", i == 0 ? "" : ",", ranks[i].get<int>());
  }
  return text;
}

// The ranks that a rank waits for; empty if it makes progress.
std::set<int> WaitsFor(const Json& rank, int late_ms) {
  if (!rank.value("in_call", false) || rank.value("stalled_ms", 0) < late_ms) return {};
  return rank["waits_for"].get<std::set<int>>();
}

// All ranks that `rank` waits for, directly or through others.
void Follow(const std::vector<std::set<int>>& waits, int rank, std::set<int>* reached) {
  for (const int next : waits[static_cast<size_t>(rank)]) {
    if (reached->insert(next).second) Follow(waits, next, reached);
  }
}

void FindLate(Json* communicator, int late_ms) {
  std::vector<std::set<int>> waits;
  for (const Json& rank : (*communicator)["ranks"]) waits.push_back(WaitsFor(rank, late_ms));
  std::map<int, Json> waiting;  // by the rank that they wait for
  bool any_waits = false;
  for (size_t rank = 0; rank < waits.size(); ++rank) {
    std::set<int> reached;
    Follow(waits, static_cast<int>(rank), &reached);
    any_waits = any_waits || !reached.empty();
    for (const int end : reached) {
      if (waits[static_cast<size_t>(end)].empty()) waiting[end].push_back(rank);
    }
  }
  Json late = Json::array();
  for (auto& [rank, by] : waiting) late.push_back({{"rank", rank}, {"waiting", by}});
  (*communicator)["circle"] = any_waits && late.empty();
  (*communicator)["late"] = std::move(late);
}

// What a rank says of itself is newer than what others know of it.
void Merge(const Json& answer, int pid, Json* communicator) {
  const int own = answer["rank"];
  for (const Json& rank : answer["ranks"]) {
    Json& known = (*communicator)["ranks"][rank["rank"].get<size_t>()];
    const bool itself = rank["rank"] == own;
    if (!itself && (known.value("itself", false) || rank["state"] == "unknown")) continue;
    known = rank;
    known["itself"] = itself;
    if (!itself) continue;
    known["pid"] = pid;
    known["error"] = answer["error"];
    known["completed"] = answer["completed"];
    known["connections"] = answer["connections"];
  }
}

std::string Seconds(int64_t ms) { return fmt::format("{:.1f} s", static_cast<double>(ms) / 1000); }

std::string StateOf(const Json& rank) {
  const std::string state = rank["state"];
  if (state == "silent") return "has not answered for " + Seconds(rank["silent_ms"]);
  if (state == "left") return "has left";
  if (state == "unknown") return "not asked";
  const std::string place = rank["place"];
  return rank["in_call"].get<bool>() ? place : "outside the library, " + place;
}

std::string LateText(const Json& communicator, const Json& late) {
  const Json& ranks = communicator["ranks"];
  const Json& rank = ranks[late["rank"].get<size_t>()];
  int64_t longest = 0;
  std::string place;
  for (const Json& number : late["waiting"]) {
    const Json& waiting = ranks[number.get<size_t>()];
    if (waiting["stalled_ms"] < longest) continue;
    longest = waiting["stalled_ms"];
    place = waiting["place"];
  }
  return fmt::format("  late: rank {} ({}), {}; {} {} for it {}, for {}\n", late["rank"].get<int>(),
                     rank["process"].get<std::string>(), StateOf(rank), RankList(late["waiting"]),
                     late["waiting"].size() == 1 ? "waits" : "wait", place, Seconds(longest));
}

// The pairs of sites, with the hosts of the first.
std::string SitesText(const Json& sites) {
  const std::vector<size_t> of_host = sites.value("of_host", std::vector<size_t>());
  const std::vector<uint64_t> round_trips = sites.value("round_trip_us", std::vector<uint64_t>());
  const size_t count = of_host.empty() ? 1 : 1 + *std::max_element(of_host.begin(), of_host.end());
  std::string text;
  for (size_t a = 0; a < count && count > 1; ++a) {
    text += fmt::format("  site {}: hosts", a);
    for (size_t host = 0, told = 0; host < of_host.size(); ++host) {
      if (of_host[host] == a) text += fmt::format("{} {}", told++ == 0 ? "" : ",", host);
    }
    for (size_t b = a + 1; b < count; ++b) {
      constexpr double kUsPerMs = 1000;
      const uint64_t us = round_trips.at(a * count + b);
      text += fmt::format("{} {:.1f} ms to site {}", b == a + 1 ? "; round trips" : ",",
                          static_cast<double>(us) / kUsPerMs, b);
    }
    text += "\n";
  }
  return text;
}

std::string ConnectionText(int rank, const Json& connection) {
  std::string text =
      fmt::format("    {} - {}: {}, {}", rank, connection["peer"].get<int>(),
                  connection["use"].get<std::string>(), connection["over"].get<std::string>());
  if (connection["over"] == "tcp") {
    text += fmt::format(
        ", sent {} B, received {} B, {} retransmits, round trip {} us, nothing received for {} ms",
        connection["sent"].get<uint64_t>(), connection["received"].get<uint64_t>(),
        connection["retransmits"].get<uint64_t>(), connection["rtt_us"].get<uint64_t>(),
        connection["quiet_ms"].get<uint64_t>());
  }
  return text + "\n";
}

}  // namespace

Json JoinAnswers(std::span<const Json> answers, int late_ms) {
  std::map<std::string, Json> by_id;
  for (const Json& answer : answers) {
    for (const Json& found : answer["communicators"]) {
      Json& communicator = by_id[found["id"]];
      if (communicator.is_null()) {
        communicator = {{"id", found["id"]},
                        {"name", found["name"]},
                        {"transport", found["transport"]},
                        {"sites", found.value("sites", Json::object())},
                        {"ranks", found["ranks"]}};
      }
      Merge(found, answer["pid"], &communicator);
    }
  }
  Json all = Json::array();
  for (auto& [id, communicator] : by_id) {
    FindLate(&communicator, late_ms);
    all.push_back(std::move(communicator));
  }
  return all;
}

std::string StatusText(const Json& communicators, bool connections) {
  std::string text;
  for (const Json& communicator : communicators) {
    const std::string name = communicator["name"];
    std::set<int> hosts;
    for (const Json& rank : communicator["ranks"]) hosts.insert(rank["host"].get<int>());
    text += fmt::format(
        "communicator {}{}: {} ranks on {} host{}, {}\n", communicator["id"].get<std::string>(),
        name.empty() ? "" : fmt::format(" \"{}\"", name), communicator["ranks"].size(),
        hosts.size(), hosts.size() == 1 ? "" : "s", communicator["transport"].get<std::string>());
    for (const Json& rank : communicator["ranks"]) {
      text += fmt::format("  {:>4} {}: {}", rank["rank"].get<int>(),
                          rank["process"].get<std::string>(), StateOf(rank));
      const std::set<int> waits = WaitsFor(rank, 0);
      if (!waits.empty() && rank["state"] == "answered") {
        text += fmt::format("; no progress for {}, waits for {}", Seconds(rank["stalled_ms"]),
                            RankList(Json(waits)));
      }
      text += "\n";
      if (rank.contains("error") && rank["error"].is_string()) {
        text += fmt::format("       failed: {}\n", rank["error"].get<std::string>());
      }
    }
    text += SitesText(communicator["sites"]);
    for (const Json& late : communicator["late"]) text += LateText(communicator, late);
    if (communicator["circle"].get<bool>()) text += "  late: none; ranks wait for each other\n";
    if (!connections) continue;
    for (const Json& rank : communicator["ranks"]) {
      for (const Json& connection : rank.value("connections", Json::array())) {
        text += ConnectionText(rank["rank"], connection);
      }
    }
  }
  return text;
}

}  // namespace inccl::tools
