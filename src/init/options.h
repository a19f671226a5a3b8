// SPDX-License-Identifier: Apache-2.0
//
// From configuration and environment to a communicator.
#ifndef INCCL_INIT_OPTIONS_H_
#define INCCL_INIT_OPTIONS_H_

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "communicator/comm_options.h"
#include "config/variables.h"
#include "control/control.h"
#include "inccl/ccl.h"
#include "transport/emulated/emulated.h"

namespace inccl {

// A call's config over the environment over the files over the defaults; every value checked.
struct InitOptions {
  Environment environment;
  CommOptions comm;
  bool slice_bytes_given = false;  // else ranks that all have a device take larger ones
  LinkOptions link;                // gbps 0: none
  int init_timeout_ms = 120000;
  bool blocking = true;
  ControlOptions control;
  std::string agreement;  // what all ranks must have alike, for people and for comparison
};
Result<InitOptions> ResolveOptions(const ccl_config_t* config);

// Slices of ranks that all have a device, where nothing else is asked for: a launch or a copy costs
// microseconds, whatever its size.
inline constexpr uint32_t kDeviceSliceBytes = 512 * 1024;
// Whether this rank would take them. Looks for devices.
bool TakesDeviceSlices(const InitOptions& options);

// The transport over which the ranks of one process meet, behind an emulated link where one is
// asked for.
std::unique_ptr<Transport> WithLink(std::unique_ptr<Transport> transport, const LinkOptions& link);

}  // namespace inccl

#endif  // INCCL_INIT_OPTIONS_H_
