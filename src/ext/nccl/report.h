// SPDX-License-Identifier: Apache-2.0
//
// With INCCL_NCCL_LOG=1: what the calls of each rule of the policy have sent and saved, and the
// bounds of their errors, printed when the process ends. Any thread.
#ifndef INCCL_EXT_NCCL_REPORT_H_
#define INCCL_EXT_NCCL_REPORT_H_

#include "ext/nccl/types.h"

namespace inccl::nccl {

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

#endif  // INCCL_EXT_NCCL_REPORT_H_
