// SPDX-License-Identifier: Apache-2.0
//
// Tuner tables: any text; what a table says is what its lines say.
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "base/types.h"
#include "fuzz/fuzz.h"
#include "tuning/tuner.h"

namespace inccl::fuzz {
namespace {

// The lines of a table, asked one by one: those of the largest number of ranks that is not above
// `nranks`, and of them the first whose limit is not below `bytes`.
std::optional<Algorithm> Look(const std::vector<TunerRow>& rows, Collective collective, int nranks,
                              bool compressed, uint64_t bytes) {
  std::map<int, std::map<uint64_t, Algorithm>> groups;
  for (const TunerRow& row : rows) {
    if (row.collective == collective && row.compressed == compressed && row.nranks <= nranks) {
      groups[row.nranks][row.max_bytes] = row.algorithm;
    }
  }
  if (groups.empty()) return std::nullopt;
  const std::map<uint64_t, Algorithm>& group = groups.rbegin()->second;
  const auto found = group.lower_bound(bytes);
  return found == group.end() ? std::nullopt : std::optional(found->second);
}

void CheckAnswers(const TunerTable& table) {
  std::vector<uint64_t> sizes = {0, 1, uint64_t{1} << 40, TunerRow::kAnyBytes};
  for (const TunerRow& row : table.rows()) {
    if (sizes.size() > 24) break;
    sizes.insert(sizes.end(), {row.max_bytes - 1, row.max_bytes, row.max_bytes + 1});
  }
  for (int c = 0; c < kCollectiveKinds; ++c) {
    for (const int nranks : {1, 2, 3, 4, 63, 64}) {
      for (const bool compressed : {false, true}) {
        for (const uint64_t bytes : sizes) {
          const auto collective = static_cast<Collective>(c);
          Require(table.Find(collective, nranks, compressed, bytes) ==
                      Look(table.rows(), collective, nranks, compressed, bytes),
                  "a table answers as its lines do");
        }
      }
    }
  }
}

}  // namespace

void Run(Data data) {
  const std::string text = ToText(data);
  const int lines = 1 + static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  const Result<TunerTable> table = TunerTable::Parse(text, "file");
  if (!table.ok()) {
    Require(table.status().code() == Code::kInvalidArgument, "a bad table is an invalid argument");
    const std::string& message = table.status().message();
    int line = 0;
    Require(std::sscanf(message.c_str(), "file:%d: ", &line) == 1, "an error names file and line");
    Require(line >= 1 && line <= lines, "the line is one of the file");
    Require(
        std::all_of(message.begin(), message.end(), [](char c) { return c >= ' ' && c <= '~'; }),
        "an error is fit for a terminal");
    return;
  }
  std::string again;
  for (const TunerRow& row : table->rows()) {
    Require(row.nranks >= 2 && row.nranks <= kMaxRanks &&
                HasSchedule(row.collective, row.algorithm, row.nranks),
            "a row can be carried out");
    again += FormatRow(row) + "\n";
  }
  for (const CostField& field : kCostFields) {
    Require(table->costs().*field.value <= field.most, "a constant is within its limit");
    again += FormatCost(field, table->costs()) + "\n";
  }
  const Result<TunerTable> back = TunerTable::Parse(again, "file");
  Require(back.ok() && back->rows() == table->rows() && back->costs() == table->costs() &&
              back->Digest() == table->Digest(),
          "what was read can be written and read");
  Require(table->empty() == (table->Digest() == 0), "an empty table alone has digest 0");
  CheckAnswers(*table);
}

std::vector<std::vector<std::byte>> Examples() {
  std::vector<std::vector<std::byte>> examples;
  for (const char* text :
       {"# measured\nallreduce 2 plain 4096 direct\nallreduce 2 plain max ring\n",
        "allreduce 4 compressed 65536 recursive_doubling\nallreduce 4 compressed max ring # all\n"
        "allreduce 8 plain 1024 tree\nallreduce 8 plain max ring\n",
        "broadcast 3 plain max tree\r\nreduce_scatter 3 plain max ring\nallgather 3 plain 0 ring\n",
        "allreduce 2 plain max ring\nallreduce 2 plain 4 ring\n", "allreduce 65 plain max ring",
        "allreduce 2 plain 18446744073709551615 ring",
        "allreduce 2 plain 18446744073709551616 ring", "allreduce 2 \x1b[2J max ring", "one two",
        "cost network_byte_ps 8000\ncost shm_latency_ns 500\n", "cost network_byte_ps 100001",
        "cost network_byte_ps 1\ncost network_byte_ps 1", "cost \x1b[2J 1"}) {
    examples.push_back(FromText(text));
  }
  return examples;
}

}  // namespace inccl::fuzz
