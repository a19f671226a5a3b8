// SPDX-License-Identifier: Apache-2.0
//
// The store of PMIx, which Open MPI's mpirun and Slurm (--mpi=pmix) offer. libpmix.so.2 is loaded
// when it is first used.
#ifndef INCCL_BOOTSTRAP_PMIX_STORE_H_
#define INCCL_BOOTSTRAP_PMIX_STORE_H_

#include <string>

#include "bootstrap/launcher_store.h"

namespace inccl::bootstrap {

struct PmixLibrary;
struct PmixProcess;

class PmixStore final : public LauncherStore {
 public:
  PmixStore() = default;
  ~PmixStore() override { Stop(); }
  const char* name() const override { return "PMIx"; }

 protected:
  Result<std::string> Exchange(const std::string& value, const Terms& terms) override;

 private:
  Status Begin();
  Status Put(const std::string& key, const std::string& value);
  template <typename Function>
  Result<std::string> Await(const char* what, const Terms& terms, Function&& start);

  const PmixLibrary* library_ = nullptr;
  const PmixProcess* self_ = nullptr;  // nullptr: PMIx is not initialized
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_PMIX_STORE_H_
