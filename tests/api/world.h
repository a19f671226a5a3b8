// SPDX-License-Identifier: Apache-2.0
//
// Another name of world/world.h.
#ifndef INCCL_TESTS_API_WORLD_H_
#define INCCL_TESTS_API_WORLD_H_

#include "world/world.h"  // IWYU pragma: export

#endif  // INCCL_TESTS_API_WORLD_H_
