// SPDX-License-Identifier: Apache-2.0
//
// The version of NCCL that libnccl.so.2 reports.
#ifndef INCCL_EXT_NCCL_VERSION_H_
#define INCCL_EXT_NCCL_VERSION_H_

namespace inccl::nccl {

inline constexpr int kDefaultVersion = 23007;           // 2.30.7
inline constexpr int kFirstVersionWithTimeout = 23000;  // older callers do not know ncclTimeout

// INCCL_NCCL_VERSION, as "2.29.7" or 22907; else kDefaultVersion.
int ReportedVersion();

}  // namespace inccl::nccl

#endif  // INCCL_EXT_NCCL_VERSION_H_
