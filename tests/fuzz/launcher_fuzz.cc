// SPDX-License-Identifier: Apache-2.0
//
// What a launcher says: any text as the value of any of its variables.
#include <map>
#include <string>

#include "bootstrap/launcher.h"
#include "fuzz/fuzz.h"

namespace inccl::fuzz {
namespace {

using Values = std::map<std::string, std::string>;

const char* const kNames[] = {"INCCL_RANK",
                              "INCCL_SIZE",
                              "INCCL_JOB",
                              "OMPI_COMM_WORLD_RANK",
                              "OMPI_COMM_WORLD_SIZE",
                              "OMPI_COMM_WORLD_LOCAL_SIZE",
                              "PMIX_NAMESPACE",
                              "OMPI_MCA_ess_base_jobid",
                              "PMIX_SERVER_URI2",
                              "OMPI_MCA_orte_precondition_transports",
                              "PMI_RANK",
                              "PMI_SIZE",
                              "PMI_JOBID",
                              "PMI_PORT",
                              "MPI_LOCALNRANKS",
                              "PMI_LOCAL_SIZE",
                              "RANK",
                              "WORLD_SIZE",
                              "LOCAL_WORLD_SIZE",
                              "MASTER_ADDR",
                              "MASTER_PORT",
                              "TORCHELASTIC_RUN_ID",
                              "TORCHELASTIC_RESTART_COUNT",
                              "SLURM_PROCID",
                              "SLURM_NTASKS",
                              "SLURM_STEP_NUM_TASKS",
                              "SLURM_STEP_NUM_NODES",
                              "SLURM_NNODES",
                              "SLURM_JOB_ID",
                              "SLURM_STEP_ID"};
// Of the names above: what differs between the ranks of one job.
const char* const kOfOneRank[] = {"INCCL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK",
                                  "SLURM_PROCID"};

Result<Launcher> Find(const Values& values) {
  return FindLauncher([&](const char* name) -> const char* {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  });
}

}  // namespace

void Run(Data data) {
  Input input(data);
  Values values;
  while (!input.empty()) {
    const char* const name = kNames[input.Byte() % std::size(kNames)];
    const std::string value = ToText(input.Take(input.Byte() % 32));
    values[name] = value.c_str();  // as the environment would hold it
  }
  const Result<Launcher> launcher = Find(values);
  if (!launcher.ok()) {
    Require(launcher.status().code() == Code::kInvalidUsage, "a refusal is a wrong usage");
    Require(!launcher.status().message().empty(), "a refusal says why");
    return;
  }
  Require(launcher->nranks >= 1 && launcher->nranks <= 1 << 20, "the number of ranks is sensible");
  Require(launcher->rank >= 0 && launcher->rank < launcher->nranks, "the rank is one of them");
  // No rank joins strangers: the user or the launcher has named the job (or this runs under Hydra).
  bool named = launcher->job.find("hydra_pmi_proxy=") != std::string::npos;
  for (const auto& [name, value] : values) {
    named =
        named || (!value.empty() && launcher->job.find(name + "=" + value) != std::string::npos);
  }
  Require(named, "a value of the environment is in the job's name");
  // Rank 0 of the same job comes to the same name and secret.
  for (const char* name : kOfOneRank) {
    if (const auto found = values.find(name); found != values.end() && !found->second.empty()) {
      found->second = "0";
    }
  }
  const Result<Launcher> zero = Find(values);
  Require(zero.ok() && zero->rank == 0 && zero->nranks == launcher->nranks, "rank 0 is one, too");
  Require(zero->kind == launcher->kind && zero->job == launcher->job &&
              zero->secret == launcher->secret,
          "ranks of one job agree on its name");
}

std::vector<std::vector<std::byte>> Examples() {
  const Values jobs[] = {
      {{"INCCL_RANK", "1"}, {"INCCL_SIZE", "3"}, {"INCCL_JOB", "job"}},
      {{"OMPI_COMM_WORLD_RANK", "2"},
       {"OMPI_COMM_WORLD_SIZE", "3"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
       {"PMIX_NAMESPACE", "1192099841"},
       {"PMIX_SERVER_URI2", "1192099840.0;tcp4://127.0.0.1:1"}},
      {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALNRANKS", "2"}, {"INCCL_JOB", "hk"}},
      {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"PMI_JOBID", "99.0"}},
      {{"RANK", "1"},
       {"WORLD_SIZE", "2"},
       {"LOCAL_WORLD_SIZE", "2"},
       {"MASTER_ADDR", "127.0.0.1"},
       {"MASTER_PORT", "29500"},
       {"TORCHELASTIC_RUN_ID", "none"},
       {"TORCHELASTIC_RESTART_COUNT", "0"}},
      {{"SLURM_PROCID", "2"},
       {"SLURM_NTASKS", "4"},
       {"SLURM_NNODES", "1"},
       {"SLURM_JOB_ID", "99"},
       {"SLURM_STEP_ID", "0"}},
  };
  std::vector<std::vector<std::byte>> examples;
  for (const Values& job : jobs) {
    std::vector<std::byte>& example = examples.emplace_back();
    for (const auto& [name, value] : job) {
      const auto* const place = std::find(std::begin(kNames), std::end(kNames), name);
      example.push_back(static_cast<std::byte>(place - std::begin(kNames)));
      example.push_back(static_cast<std::byte>(value.size()));
      const std::vector<std::byte> text = FromText(value);
      example.insert(example.end(), text.begin(), text.end());
    }
  }
  return examples;
}

}  // namespace inccl::fuzz
