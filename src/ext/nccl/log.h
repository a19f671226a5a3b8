// SPDX-License-Identifier: Apache-2.0
//
// The log of libnccl.so.2 and of libinccl below it, where NCCL has its own: on standard output, or
// in NCCL_DEBUG_FILE. A line is one write that neither waits for a reader nor raises a signal.
#ifndef INCCL_EXT_NCCL_LOG_H_
#define INCCL_EXT_NCCL_LOG_H_

#include "ext/nccl/types.h"

namespace inccl::nccl {

// Levels of NCCL_DEBUG.
enum class Level { kNone, kVersion, kWarn, kInfo };

// The level of INCCL_DEBUG, else of NCCL_DEBUG; without either kNone.
Level DebugLevel();

// The line "host:process:thread NCCL LEVEL text", without a condition.
void PrintLine(const char* level, const char* text);
// The text alone as a line.
void PrintPlain(const char* text);

// While it lives, lines of the calling thread are dropped: of calls that are meant to fail.
class Silence {
 public:
  Silence();
  ~Silence();
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;
};

// Results and warnings of libnccl.so.2.

// Keeps the text for ncclGetLastError, and prints it if the level is kWarn or above. The text is at
// most 1023 bytes.
__attribute__((format(printf, 1, 2))) void Warn(const char* format, ...);

// Prints a line at level kInfo.
__attribute__((format(printf, 1, 2))) void Info(const char* format, ...);

// The result of a call of libinccl as a result of NCCL. Keeps the text of an error for
// ncclGetLastError; libinccl has logged it.
ResultCode FromError(ccl_result_t result);
// As FromError, for the error of a communicator that another call has met.
ResultCode FromErrorOf(Comm comm, ccl_result_t error);
inline ResultCode From(ccl_result_t result) {
  return __builtin_expect(result == CCL_SUCCESS, 1) ? 0 : FromError(result);
}

// With INCCL_NCCL_LOG=1: what the calls of each rule of the policy have sent and saved, and the
// bounds of their errors, printed when the process ends. Any thread.

inline constexpr int kMostRules = 64;
// Accounts: those of the rules, of calls with a codec of their own, and of uncompressed calls.
inline constexpr int kOwnCodecs = kMostRules;
inline constexpr int kUncompressed = kMostRules + 1;
inline constexpr int kAccounts = kMostRules + 2;

// INCCL_NCCL_LOG is 1.
bool Logging();

// Counts a call that is to be made, and returns a place where libinccl writes what it did; NULL if
// there is none left: calls on streams keep theirs until they have completed.
void CountCall(int account, uint64_t bytes);
ccl_compression_stats_t* TakeStats(int account, Comm comm);
// The call has failed, so nothing will be written. NULL is ignored.
void DropStats(ccl_compression_stats_t* stats);
// The communicator has ended, and with it its calls.
void DropStatsOf(Comm comm);

// Prints the line of an account after `title`; nothing without calls, unless `always`.
void PrintAccount(int account, const char* title, bool always);

}  // namespace inccl::nccl

#endif  // INCCL_EXT_NCCL_LOG_H_
