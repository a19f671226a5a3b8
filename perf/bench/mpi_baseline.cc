// SPDX-License-Identifier: Apache-2.0
#include "perf/bench/baseline.h"
#include "perf/support/mpi_world.h"

namespace inccl::perf {
namespace {

class Mpi final : public BaselineCalls {
 public:
  explicit Mpi(const MpiModule* module) : module_(module) {}

  std::string name() const override { return "MPI"; }
  std::string version() const override { return "mpi"; }
  bool Can(const RowBuffers& buffers) const override {
    return module_->can(CallOf(buffers, false));
  }
  Status Run(const RowBuffers& buffers, bool in_place) override {
    return module_->call(CallOf(buffers, in_place));
  }

 private:
  static MpiCall CallOf(const RowBuffers& buffers, bool in_place) {
    const RowCase& row = buffers.row();
    return {row.operation,          row.type, row.op,         row.root,
            buffers.layout().count, in_place, buffers.send(), buffers.recv()};
  }

  const MpiModule* module_;
};

}  // namespace

Result<std::unique_ptr<BaselineCalls>> MpiBaseline() {
  Result<const MpiModule*> module = LoadMpi();
  if (!module.ok()) return module.status();
  return std::unique_ptr<BaselineCalls>(std::make_unique<Mpi>(*module));
}

}  // namespace inccl::perf
