// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/gathering.h"

#include <fmt/format.h>

#include <string_view>

#include "base/text.h"

namespace inccl::bootstrap {
namespace {

constexpr size_t kMostListed = 16;

std::vector<std::string_view> SplitWords(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t space = text.find(' ');
    words.push_back(text.substr(0, space));
    if (space == std::string_view::npos) break;
    text.remove_prefix(space + 1);
  }
  return words;
}

// Agreements are usually lists of key=value. Keeps only the words that differ; leaves both texts
// unchanged if their word counts differ.
void KeepDifference(std::string* a, std::string* b) {
  const std::vector<std::string_view> a_words = SplitWords(*a), b_words = SplitWords(*b);
  if (a_words.size() != b_words.size()) return;
  std::string a_kept, b_kept;
  for (size_t i = 0; i < a_words.size(); ++i) {
    if (a_words[i] == b_words[i]) continue;
    const size_t key = a_words[i].find('=');
    if (key == std::string_view::npos ||
        a_words[i].substr(0, key + 1) != b_words[i].substr(0, key + 1)) {
      return;
    }
    a_kept.append(a_kept.empty() ? "" : " ").append(a_words[i]);
    b_kept.append(b_kept.empty() ? "" : " ").append(b_words[i]);
  }
  *a = a_kept;
  *b = b_kept;
}

}  // namespace

std::string NameOf(const RankRecord& record) {
  return fmt::format("{}@{}:{}", record.rank, record.host, record.pid);
}

std::string ListRanks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i == kMostListed) return text + fmt::format(" and {} more", ranks.size() - i);
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  }
  return text;
}

std::string ClaimedTwice(const RankRecord& first, const RankRecord& second) {
  return fmt::format("rank {} is claimed twice: first by {}, then by {}", first.rank, NameOf(first),
                     NameOf(second));
}

const RankRecord* Gathering::Find(uint32_t rank) const {
  return rank < ranks_.size() && ranks_[rank] ? &ranks_[rank]->record : nullptr;
}

Gathering::Verdict Gathering::Add(const Registration& registration, Status* why) {
  const uint32_t rank = registration.record.rank;
  bool replaces = false, was_member = false;
  std::string twice;
  if (!first_) {
    ranks_.resize(registration.nranks);
    first_ = rank;
  } else {
    const Registration& first = *ranks_[*first_];
    const bool same_size = registration.nranks == first.nranks;
    if (same_size && ranks_[rank]) {
      const Registration& known = *ranks_[rank];
      const bool again = registration.record.key == known.record.key;
      was_member = known.members != 0;
      replaces =
          again ? registration.attempt > known.attempt : registration.members != 0 && !was_member;
      if (again) {
        twice = fmt::format("rank {} registers by several connections, and the latest counts",
                            NameOf(known.record));
      } else {
        twice = replaces ? ClaimedTwice(registration.record, known.record)
                         : ClaimedTwice(known.record, registration.record);
      }
      if (!replaces) {
        *why = InvalidUsage(twice);
        return Verdict::kRefused;
      }
    }
    *why = CheckAgainst(first, registration);
    if (!why->ok()) return Verdict::kBroken;
  }
  if (replaces) {
    *why = InvalidUsage(twice);
  } else {
    ++joined_;
  }
  ranks_[rank] = registration;
  members_ = std::max(members_, registration.members);
  if (registration.members != 0 && !was_member) ++members_joined_;
  return replaces ? Verdict::kReplaces : Verdict::kJoined;
}

Status Gathering::CheckAgainst(const Registration& first, const Registration& other) const {
  const std::string a = NameOf(first.record), b = NameOf(other.record);
  if (first.nranks != other.nranks) {
    return InvalidUsage(
        fmt::format("ranks differ in the number of ranks: rank {} says {}, rank {} says {}", a,
                    first.nranks, b, other.nranks));
  }
  if (first.record.uid != other.record.uid) {
    return InvalidUsage(
        fmt::format("ranks run as different users: rank {} as uid {}, rank {} as "
                    "uid {}; not in this version",
                    a, first.record.uid, b, other.record.uid));
  }
  if (first.agreement != other.agreement) {
    std::string ours = first.agreement, theirs = other.agreement;
    KeepDifference(&ours, &theirs);
    return InvalidUsage(fmt::format("ranks disagree: rank {} has \"{}\", rank {} has \"{}\"", a,
                                    Escaped(ours), b, Escaped(theirs)));
  }
  return Status::Ok();
}

std::string Gathering::Missing() const {
  std::vector<int> missing;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank]) missing.push_back(static_cast<int>(rank));
  }
  return missing.empty() ? "a member" : ListRanks(missing);
}

std::vector<RankRecord> Gathering::records() const {
  std::vector<RankRecord> records;
  for (const std::optional<Registration>& rank : ranks_) {
    if (rank) records.push_back(rank->record);
  }
  return records;
}

}  // namespace inccl::bootstrap
