// SPDX-License-Identifier: Apache-2.0
//
// The table on the terminal: nccl-tests' columns, units and footers, then ours. The narrow one has
// fewer columns, in at most 120 characters (with codecs of up to 13 and no further columns).
#ifndef INCCL_PERF_SUPPORT_TABLE_H_
#define INCCL_PERF_SUPPORT_TABLE_H_

#include <string>
#include <vector>

#include "perf/support/row.h"

namespace inccl::perf {

struct TableColumns {
  bool check = true;       // else N/A stands under #wrong and the errors
  bool digest = false;     // --digest
  std::string baseline{};  // its name, of --baseline; empty: none
  int codec_width = 12;    // of the widest codec
  bool limit = false;      // --limit
  bool tails = false;      // --tails
  bool narrow = false;     // the narrow table
  Operation operation = Operation::kAllReduce;
};

class Table {
 public:
  explicit Table(const TableColumns& columns) : columns_(columns) {}

  // Three lines, each ending in a newline.
  std::string Header() const;
  // One line.
  std::string Format(const Row& row) const;
  // "# Out of bounds values", "# Avg bus bandwidth" over all rows and placements, and what the
  // marks in the rows mean.
  std::string Footer(const std::vector<Row>& rows) const;

 private:
  std::string WideHeader() const;
  std::string NarrowHeader() const;
  std::string FormatWide(const Row& row) const;
  std::string FormatNarrow(const Row& row) const;
  // Digest and further sides, at the end of each of the three lines.
  void AddExtraHeaders(std::string* placements, std::string* names, std::string* units) const;
  std::string FormatExtras(const Row& row) const;
  TableColumns columns_;
};

// A time in 7 characters: two decimals below 100 us, one below 10000, none above.
std::string FormatTime(double microseconds);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_TABLE_H_
