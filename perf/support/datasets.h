// SPDX-License-Identifier: Apache-2.0
//
// The data sets of benchmarks and tools. A specification is one of
//
//   normal       independent standard normal values
//   grad         like layered gradients: one scale per superblock of 256 elements, shared by all
//                ranks, from a mixture of two lognormal distributions (natural logarithm: weights
//                0.79 and 0.21, mu -3.99 and -16.41, sigma 1.22 and 4.63); normal values inside
//   gradients:W  W early, middle or late: the recorded gradients in data/gradients
//   FILE.npy     float32 as numpy.save writes it; {rank} in its name is replaced by the rank
//
// A file named with {rank} is that rank's data, flattened. Without {rank}, a two-dimensional file
// has a row per rank, and a one-dimensional file is dealt out: rank r begins at element r * count,
// wrapping around. Data shorter than count repeats from its beginning.
//
// The generators are a function of (spec, rank, seed) alone, counts only cut them off; they use
// base/rng.h and, in double precision, libm's log, exp, pow, sin and cos.
#ifndef INCCL_PERF_SUPPORT_DATASETS_H_
#define INCCL_PERF_SUPPORT_DATASETS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace inccl::perf {

// `count` values of rank `rank` of `nranks`. kInvalidArgument for a bad spec, a rank outside
// [0, nranks) or data that is missing for this rank, kSystemError for files that cannot be read.
Result<std::vector<float>> MakeData(const std::string& spec, int rank, int nranks, uint64_t count,
                                    uint64_t seed);

// Elements per rank of a spec that names files (gradients:W, FILE.npy): a file's length, or the
// length of a row. 0 for the generators, which have no length of their own.
Result<uint64_t> NaturalCount(const std::string& spec);

// The directory of the recorded gradients: INCCL_GRADIENTS_DIR, else data/gradients or
// share/inccl/gradients in a directory above the running program, else that of the source tree
// this was compiled from.
Result<std::string> GradientsDirectory();

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_DATASETS_H_
