// SPDX-License-Identifier: Apache-2.0
//
// Lines of "what, threshold, measured, verdict", printed as they come, and their totals.
#ifndef INCCL_PERF_ACCURACY_CHECKLIST_H_
#define INCCL_PERF_ACCURACY_CHECKLIST_H_

#include <string>

namespace inccl::tools {

class Checklist {
 public:
  explicit Checklist(bool csv);
  // A title for the lines that follow.
  void Section(const std::string& title) const;
  void Check(bool passed, const std::string& what, const std::string& threshold,
             const std::string& measured);
  // Not measured, and so neither passed nor failed.
  void Skip(const std::string& what, const std::string& why);
  // A comparison that is known to go the other way: shown, and no promise.
  void Note(const std::string& what, const std::string& beside, const std::string& measured);
  void Total() const;

  int passed() const { return passed_; }
  int failed() const { return failed_; }
  int skipped() const { return skipped_; }

 private:
  void Line(const char* verdict, const std::string& what, const std::string& threshold,
            const std::string& measured) const;

  bool csv_;
  int passed_ = 0, failed_ = 0, skipped_ = 0, noted_ = 0;
};

}  // namespace inccl::tools

#endif  // INCCL_PERF_ACCURACY_CHECKLIST_H_
