// SPDX-License-Identifier: Apache-2.0
//
// Which ranks of a communicator have a control connection with each other. Up to a number of ranks
// all pairs have one. Above it the ranks form a ring with shortcuts: each rank has a connection
// with the ranks at distances of powers of two in both directions, and with all ranks of its host,
// since descriptors of shared memory travel over them. Equal on all ranks.
#ifndef INCCL_BOOTSTRAP_CONTROL_GRAPH_H_
#define INCCL_BOOTSTRAP_CONTROL_GRAPH_H_

#include <vector>

#include "topology/host_map.h"

namespace inccl {

class ControlGraph {
 public:
  static constexpr int kAllPairs = 64;  // the default of INCCL_CONTROL_ALL_PAIRS

  ControlGraph() = default;  // of all pairs, whatever their number
  // All pairs up to `all_pairs` ranks.
  ControlGraph(HostMap hosts, int all_pairs);

  // Every pair of ranks has a connection.
  bool complete() const { return complete_; }
  // There are more ranks than `all_pairs`: a rank connects for data when it needs a peer.
  bool large() const { return large_; }
  bool Linked(int a, int b) const;
  // By rank, the neighbour of `from` that comes next on a shortest path over ranks that are not
  // `gone`; -1: there is no path, or the rank is gone. Only if the graph is not complete.
  std::vector<int> NextHops(int from, const std::vector<bool>& gone) const;

 private:
  HostMap hosts_;
  bool complete_ = true, large_ = false;
};

}  // namespace inccl

#endif  // INCCL_BOOTSTRAP_CONTROL_GRAPH_H_
