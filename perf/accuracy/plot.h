// SPDX-License-Identifier: Apache-2.0
//
// Error against bits as a picture: one panel for each data set and number of ranks, one line for
// each series of codecs, vNMSE on a logarithmic axis.
#ifndef INCCL_PERF_ACCURACY_PLOT_H_
#define INCCL_PERF_ACCURACY_PLOT_H_

#include <string>
#include <vector>

#include "base/status.h"
#include "perf/accuracy/report.h"

namespace inccl::tools {

// The SVG's text. Series with errors that have no place on the axis (zero, below 1e-9, not finite)
// are named below the panels.
std::string PlotSvg(const std::vector<Row>& rows);

Status WritePlot(const std::string& path, const std::vector<Row>& rows);

}  // namespace inccl::tools

#endif  // INCCL_PERF_ACCURACY_PLOT_H_
