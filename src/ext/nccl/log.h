// SPDX-License-Identifier: Apache-2.0
//
// The log of libnccl.so.2 and of libinccl below it, where NCCL has its own: on standard output, or
// in NCCL_DEBUG_FILE. A line is one write that neither waits for a reader nor raises a signal.
#ifndef INCCL_EXT_NCCL_LOG_H_
#define INCCL_EXT_NCCL_LOG_H_

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

}  // namespace inccl::nccl

#endif  // INCCL_EXT_NCCL_LOG_H_
