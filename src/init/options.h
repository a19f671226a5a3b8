// SPDX-License-Identifier: Apache-2.0
//
// Resolves the options of a communicator from configuration and environment.
#ifndef INCCL_INIT_OPTIONS_H_
#define INCCL_INIT_OPTIONS_H_

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/interfaces.h"
#include "communicator/comm_options.h"
#include "config/variables.h"
#include "control/control.h"
#include "inccl/ccl.h"
#include "transport/emulated/emulated.h"

namespace inccl {

// The config of the call takes precedence over the environment, then the files, then the defaults.
// Every value has been checked.
struct InitOptions {
  Environment environment;
  CommOptions comm;
  bool slice_bytes_given = false;  // else larger slices are used if all ranks have a device
  LinkOptions link;                // gbps 0: no emulated link
  int init_timeout_ms = 120000;
  bool blocking = true;
  ControlOptions control;
  ListenRules listen;            // INCCL_PORT_RANGE, INCCL_SOCKET_ALLOW
  std::string status_directory;  // where inccl-status looks for this process; "": nowhere
  std::string agreement;  // the values on which all ranks must agree, as text to compare and to
                          // print
};
Result<InitOptions> ResolveOptions(const ccl_config_t* config);

// Slice size if all ranks have a device and no other size is given: a launch or a copy costs
// microseconds, whatever its size.
inline constexpr uint32_t kDeviceSliceBytes = 1024 * 1024;
// Whether this rank would use kDeviceSliceBytes. Looks for devices.
bool TakesDeviceSlices(const InitOptions& options);

// Puts an emulated link in front of a transport, if the options have one.
std::unique_ptr<Transport> WithLink(std::unique_ptr<Transport> transport, const LinkOptions& link);

}  // namespace inccl

#endif  // INCCL_INIT_OPTIONS_H_
