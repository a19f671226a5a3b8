// SPDX-License-Identifier: Apache-2.0
//
// Stands between the library and the C library: the n-th call of a function fails with a given
// errno, or moves one byte only. Linked into the programs that use it (tests/CMakeLists.txt), where
// its definitions come before the system's. Off until Arm; counts for all threads of the process.
#ifndef INCCL_TESTS_FAULTS_INTERPOSER_H_
#define INCCL_TESTS_FAULTS_INTERPOSER_H_

#include <cstddef>
#include <cstdint>

namespace inccl::test::interposer {

enum Function : int {
  kNew,     // operator new: std::bad_alloc
  kMalloc,  // malloc, calloc, realloc; counted only without sanitizers
  kMmap,
  kMemfdCreate,
  kFtruncate,
  kFallocate,
  kSocket,
  kBind,
  kListen,
  kConnect,
  kAccept,
  kPoll,
  kEpollCreate,
  kEpollCtl,
  kEpollWait,
  kEventfd,
  kSend,
  kRecv,
  kSendmsg,
  kRecvmsg,
  kGetsockopt,
  kOpen,
  kRead,
  kFstat,
  kGetrandom,
  kPthreadCreate,
  kFunctions
};
const char* Name(Function function);

struct Plan {
  Function function = kFunctions;  // kFunctions: none
  uint64_t first = 1;              // the first call that fails
  uint64_t last = 1;               // and the last
  int error = 0;                   // errno; 0: sends and receives of one byte
};

// Counts begin at 0.
void Arm(const Plan& plan);
void Disarm();
uint64_t Calls(Function function);

}  // namespace inccl::test::interposer

#endif  // INCCL_TESTS_FAULTS_INTERPOSER_H_
