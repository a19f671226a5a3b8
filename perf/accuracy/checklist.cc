// SPDX-License-Identifier: Apache-2.0
#include "perf/accuracy/checklist.h"

#include <fmt/format.h>

#include <cstdio>

#include "perf/accuracy/report.h"
#include "perf/support/output.h"

namespace inccl::tools {

Checklist::Checklist(bool csv) : csv_(csv) {
  if (csv_) perf::PrintOut("verdict,what,threshold,measured\n");
}

void Checklist::Section(const std::string& title) const {
  if (!csv_) perf::PrintOut("# {}\n", title);
}

void Checklist::Line(const char* verdict, const std::string& what, const std::string& threshold,
                     const std::string& measured) const {
  if (csv_) {
    perf::PrintOut("{},{},{},{}\n", verdict, CsvField(what), CsvField(threshold),
                   CsvField(measured));
  } else {
    perf::PrintOut("{:<8} {:<60} {:<28} {}\n", verdict, what, threshold, measured);
  }
  std::fflush(stdout);
}

void Checklist::Check(bool passed, const std::string& what, const std::string& threshold,
                      const std::string& measured) {
  ++(passed ? passed_ : failed_);
  Line(passed ? "pass" : "FAIL", what, threshold, measured);
}

void Checklist::Skip(const std::string& what, const std::string& why) {
  ++skipped_;
  Line("skipped", what, "", why);
}

void Checklist::Note(const std::string& what, const std::string& beside,
                     const std::string& measured) {
  ++noted_;
  Line("not met", what, beside, measured);
}

void Checklist::Total() const {
  perf::WriteTo(csv_ ? stderr : stdout,
                fmt::format("{} passed, {} failed, {} skipped, {} known not to be met\n", passed_,
                            failed_, skipped_, noted_));
}

}  // namespace inccl::tools
