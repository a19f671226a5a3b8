// SPDX-License-Identifier: Apache-2.0
//
// The machine that the simulation runs on: what a message, a byte and an element cost. The defaults
// are what docs/scaling.md measures, with the commands.
#ifndef INCCL_PERF_SCALING_MACHINE_H_
#define INCCL_PERF_SCALING_MACHINE_H_

namespace inccl::perf {

// Times are in nanoseconds.
struct Machine {
  // Between hosts. All ranks of a host share its link, which sends and receives at the same time.
  double gbps = 10;
  double framing = 1514.0 / 1448;  // bytes on the link for each byte of header and payload
  double latency = 3000;           // from the first byte on the link to a producer or consumer that
                                   // sees it, on an idle link
  // Processor time of each end for a message and for each of its bytes.
  double message = 7000;
  double message_byte = 0.29;

  // Between hosts of different sites. A site's hosts share its link; 0: each has its own.
  double site_latency = 0;
  double site_gbps = 0;

  // Inside a host, over shared memory.
  double local_latency = 500;

  // Processor time of one step for one slice, besides its elements.
  double step = 200;
  double copy_byte = 0.0175;     // of a further output, in the cache
  double memory_byte = 0.085;    // of input and output, if the vector is larger than the cache
  double cache_bytes = 4 << 20;  // of one rank
  // For each element of fp32.
  double copy = 0.07;         // uncompressed: one input
  double add = 0.11;          // each further input
  double encode = 0.22;       // hbi: own elements alone
  double hop = 0.26;          // own elements added to a payload
  double add_packed = 0.042;  // each further payload
  double finish = 0.30;       // complete sum to result and output
  double decode = 0.10;       // result to output
  double scales = 0.055;      // agreement: own elements to side words
  double merge = 0.01;        // agreement: each further input
  double plan = 0.02;         // agreed words to levels

  // Processors for each rank: with 0.5, two ranks share one and all processor times double.
  double processors_per_rank = 1;
};

// The same machine with a network adapter that moves bytes without the processor. Its latency and
// the processor time of a message are assumptions.
constexpr Machine WithOffload(Machine machine) {
  machine.latency = 3000;
  machine.message = 300;
  machine.message_byte = 0;
  return machine;
}

}  // namespace inccl::perf

#endif  // INCCL_PERF_SCALING_MACHINE_H_
