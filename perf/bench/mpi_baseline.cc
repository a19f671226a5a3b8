// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/baseline.h"
#ifdef INCCL_PERF_HAVE_MPI
#include "perf/support/mpi_world.h"
#endif

namespace inccl::perf {

#ifdef INCCL_PERF_HAVE_MPI
namespace {

class Mpi final : public BaselineCalls {
 public:
  std::string name() const override { return "MPI"; }
  std::string version() const override { return "mpi"; }
  bool Can(const RowBuffers& buffers) const override { return MpiCan(CallOf(buffers, false)); }
  Status Run(const RowBuffers& buffers, bool in_place) override {
    return RunMpi(CallOf(buffers, in_place));
  }

 private:
  static MpiCall CallOf(const RowBuffers& buffers, bool in_place) {
    const RowCase& row = buffers.row();
    return {row.operation,          row.type, row.op,         row.root,
            buffers.layout().count, in_place, buffers.send(), buffers.recv()};
  }
};

}  // namespace

Result<std::unique_ptr<BaselineCalls>> MpiBaseline() {
  return std::unique_ptr<BaselineCalls>(std::make_unique<Mpi>());
}

#else

Result<std::unique_ptr<BaselineCalls>> MpiBaseline() {
  return InvalidArgument("--baseline mpi: built without MPI");
}

#endif

}  // namespace inccl::perf
