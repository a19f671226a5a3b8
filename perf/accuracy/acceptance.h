// SPDX-License-Identifier: Apache-2.0
//
// The promises about errors that only samples can show (docs/accuracy.md, "Acceptance").
#ifndef INCCL_PERF_ACCURACY_ACCEPTANCE_H_
#define INCCL_PERF_ACCURACY_ACCEPTANCE_H_

#include <string>
#include <vector>

#include "base/status.h"
#include "perf/accuracy/checklist.h"

namespace inccl::tools {

// Mean square error of sums alone on normal data against (n+1)/12 of the squared steps.
Status CheckSums(Checklist* list);

// What is unbiased averages out over steps.
Status CheckUnbiased(Checklist* list);

// The reference table: errors equal to its three digits, bits within their cap.
Status CheckTable(Checklist* list);

// The comparisons with other formats, on these data sets. `known`: those of them on which
// QSGDMaxNorm is known to have less error; there that comparison is shown and promises nothing.
Status CheckComparisons(const std::vector<std::string>& data, const std::vector<std::string>& known,
                        Checklist* list);

}  // namespace inccl::tools

#endif  // INCCL_PERF_ACCURACY_ACCEPTANCE_H_
