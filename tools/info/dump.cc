// SPDX-License-Identifier: Apache-2.0
#include "tools/info/dump.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <vector>

#include "verify/validate.h"

namespace inccl::tools {
namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return lower;
}

template <typename T>
Result<T> ParseName(std::string_view name, int count, const char* what) {
  std::string names;
  for (int i = 0; i < count; ++i) {
    const auto value = static_cast<T>(i);
    if (Lower(name) == Name(value)) return value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", Name(value));
  }
  return InvalidArgument(fmt::format("{} \"{}\" is none of {}", what, name, names));
}

}  // namespace

Result<Collective> ParseCollective(std::string_view name) {
  return ParseName<Collective>(name, kCollectiveKinds, "collective");
}

Result<Algorithm> ParseAlgorithm(std::string_view name) {
  if (Lower(name) == "direct_two_shot") return Algorithm::kTwoShot;  // INCCL_ALGO's name for it
  return ParseName<Algorithm>(name, kAlgorithms, "algorithm");
}

Result<DataType> ParseDataType(std::string_view name) {
  return ParseName<DataType>(name, kDataTypes, "type");
}

Result<ReduceOp> ParseReduceOp(std::string_view name) {
  return ParseName<ReduceOp>(name, kReduceOps, "op");
}

Result<uint64_t> ParseSize(std::string_view text) {
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  const std::string unit = Lower(std::string_view(stop, static_cast<size_t>(end - stop)));
  const int shift = unit.empty() ? 0 : unit == "k" ? 10 : unit == "m" ? 20 : unit == "g" ? 30 : -1;
  // No call is larger than the address space of this host could hold.
  constexpr uint64_t kMost = uint64_t{1} << 47;
  if (error != std::errc() || shift < 0 || number > kMost >> shift) {
    return InvalidArgument(fmt::format(
        "size \"{}\" is not a number of bytes up to 2^47, such as 4096, 64K, 1M, 2G", text));
  }
  return number << shift;
}

Result<HostMap> ParseHosts(std::string_view text, int nranks) {
  if (text.empty()) return HostMap();
  std::vector<uint64_t> identities;
  std::vector<int> sites = {0};  // of the hosts so far and the next one
  std::string_view rest = text;
  for (uint64_t host = 0; identities.size() <= static_cast<size_t>(nranks); ++host) {
    const size_t end = rest.find_first_of(",/");
    const Result<uint64_t> ranks = ParseSize(rest.substr(0, end));
    const size_t most = static_cast<size_t>(nranks) + 1;
    if (!ranks.ok() || *ranks == 0) break;
    identities.insert(identities.end(), std::min<size_t>(*ranks, most), host);
    if (end == rest.npos) {
      if (identities.size() != static_cast<size_t>(nranks)) break;
      HostMap hosts(identities);
      hosts.SetSites(std::move(sites));
      return hosts;
    }
    sites.push_back(sites.back() + (rest[end] == '/' ? 1 : 0));
    rest.remove_prefix(end + 1);
  }
  return InvalidArgument(fmt::format(
      "hosts \"{}\" are not numbers of ranks, {} together, such as 4,4, or 4,4/4 with two sites",
      text, nranks));
}

// The schedules of all ranks are made and proven.
constexpr int kMostRanks = 256;

Result<std::string> Dump(const DumpRequest& request) {
  const int nranks = request.schedule.nranks;
  if (nranks < 2 || nranks > kMostRanks) {
    return InvalidArgument(fmt::format("{} ranks are not in [2, {}]", nranks, kMostRanks));
  }
  if (request.rank && (*request.rank < 0 || *request.rank >= nranks)) {
    return InvalidArgument(fmt::format("rank {} is not in [0, {})", *request.rank, nranks));
  }
  if (request.schedule.root < 0 || request.schedule.root >= nranks) {
    return InvalidArgument(fmt::format("root {} is not in [0, {})", request.schedule.root, nranks));
  }
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < nranks; ++rank) {
    ScheduleRequest one = request.schedule;
    one.rank = rank;
    one.hosts = request.hosts.nranks() == 0 ? nullptr : &request.hosts;
    Result<Schedule> schedule = MakeSchedule(one);
    if (!schedule.ok()) return schedule.status();
    schedules.push_back(*std::move(schedule));
  }
  Result<Proof> proof = Validate(schedules);
  if (!proof.ok()) return proof.status();
  if (request.as == DumpRequest::As::kDot) return DumpDot(schedules);
  std::string text;
  nlohmann::ordered_json json = {{"collective", Name(request.schedule.collective)},
                                 {"algorithm", Name(request.schedule.algorithm)},
                                 {"ranks", nranks},
                                 {"steps", proof->steps},
                                 {"rank_order", proof->rank_order},
                                 {"schedules", nlohmann::ordered_json::array()}};
  for (const Schedule& schedule : schedules) {
    if (request.rank && schedule.rank != *request.rank) continue;
    if (!text.empty()) text += '\n';
    text += DumpText(schedule);
    json["schedules"].push_back({{"rank", schedule.rank}, {"text", DumpText(schedule)}});
  }
  return request.as == DumpRequest::As::kJson ? json.dump(2) + "\n" : text;
}

}  // namespace inccl::tools
