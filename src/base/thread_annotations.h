// SPDX-License-Identifier: Apache-2.0
//
// Clang's thread-safety attributes: which mutex guards a member, and which mutexes a function
// needs, takes or must not hold. Builds with clang check them (-Wthread-safety); other compilers
// see nothing. Constructors and destructors are not checked: one thread has the object then.
#ifndef INCCL_BASE_THREAD_ANNOTATIONS_H_
#define INCCL_BASE_THREAD_ANNOTATIONS_H_

#if defined(__clang__)
#define INCCL_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define INCCL_THREAD_ATTRIBUTE(x)
#endif

// Of members and variables: read and written with `mutex` held (the second: what they point to).
#define INCCL_GUARDED_BY(mutex) INCCL_THREAD_ATTRIBUTE(guarded_by(mutex))
#define INCCL_PT_GUARDED_BY(mutex) INCCL_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
// Of mutexes: a thread that takes both takes this one first.
#define INCCL_ACQUIRED_BEFORE(...) INCCL_THREAD_ATTRIBUTE(acquired_before(__VA_ARGS__))

// Of functions: the caller holds, or does not hold, the mutex.
#define INCCL_REQUIRES(...) INCCL_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define INCCL_EXCLUDES(...) INCCL_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// For what the analysis cannot follow; a comment says why.
#define INCCL_NO_THREAD_SAFETY_ANALYSIS INCCL_THREAD_ATTRIBUTE(no_thread_safety_analysis)

// For the classes of base/mutex.h.
#define INCCL_CAPABILITY(name) INCCL_THREAD_ATTRIBUTE(capability(name))
#define INCCL_SCOPED_CAPABILITY INCCL_THREAD_ATTRIBUTE(scoped_lockable)
#define INCCL_ACQUIRE(...) INCCL_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define INCCL_ACQUIRE_SHARED(...) INCCL_THREAD_ATTRIBUTE(acquire_shared_capability(__VA_ARGS__))
#define INCCL_TRY_ACQUIRE(...) INCCL_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define INCCL_RELEASE(...) INCCL_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define INCCL_RELEASE_SHARED(...) INCCL_THREAD_ATTRIBUTE(release_shared_capability(__VA_ARGS__))
#define INCCL_ASSERT_HELD(...) INCCL_THREAD_ATTRIBUTE(assert_capability(__VA_ARGS__))

#endif  // INCCL_BASE_THREAD_ANNOTATIONS_H_
