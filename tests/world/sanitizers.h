// SPDX-License-Identifier: Apache-2.0
//
// What a test tells the runtimes of the sanitizers while it runs.
#ifndef INCCL_TESTS_WORLD_SANITIZERS_H_
#define INCCL_TESTS_WORLD_SANITIZERS_H_

namespace inccl::test {

// This process is going to call exit() with threads at work: nothing is to look for leaks then. The
// search stops the threads wherever they are, and dies of what it reads ("Tracer caught signal 11")
// if one is just beginning or ending, as UCX's do while its destructors run.
void ExitsWithThreadsAtWork();

}  // namespace inccl::test

#endif  // INCCL_TESTS_WORLD_SANITIZERS_H_
