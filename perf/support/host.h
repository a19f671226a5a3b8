// SPDX-License-Identifier: Apache-2.0
//
// Facts that stand beside numbers, and the line that shows that a long run is alive.
#ifndef INCCL_PERF_SUPPORT_HOST_H_
#define INCCL_PERF_SUPPORT_HOST_H_

#include <chrono>
#include <string>

namespace inccl::perf {

struct Host {
  std::string name;
  std::string cpu;   // model, as the kernel names it; "unknown" if it does not
  int cores = 0;     // that this process may run on
  std::string date;  // now, UTC, ISO 8601
};
Host ThisHost();

// argv, joined by blanks; arguments with characters special to a shell in single quotes.
std::string CommandLine(int argc, const char* const* argv);

// Columns of the terminal that is standard output; 0 if it is none, or does not say.
int TerminalColumns();

// One line on stderr that replaces itself; only if stderr is a terminal and `enabled`. The first
// appears after a second, the next ones at most five times a second. Not thread-safe.
class ProgressLine {
 public:
  explicit ProgressLine(bool enabled);
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // True when the next Show would be seen: the text need not be made otherwise.
  bool Due() const;
  void Show(const std::string& text);
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;
  const bool enabled_;
  bool visible_ = false;
  Clock::time_point next_;
};

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_HOST_H_
