// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/launcher.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <sstream>
#include <string_view>

#include "base/text.h"

namespace inccl::bootstrap {
namespace {

constexpr int kMostAncestors = 100;
constexpr size_t kMostBytes = 4096;  // limit for a stat file
constexpr const char* kProxyName = "hydra_pmi_proxy";

struct Process {
  std::string name;
  long parent = 0;
  std::string started;
};

// Parses /proc/PID/stat: "PID (NAME) STATE PARENT ...", where NAME may contain any character.
// Returns false if the file cannot be read.
bool ReadProcess(long pid, Process* process) {
  int error = 0;
  const Result<std::string> text =
      ReadTextFile("process", fmt::format("/proc/{}/stat", pid), kMostBytes, &error);
  if (!text.ok()) return false;
  const size_t open = text->find('('), close = text->rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return false;
  process->name = text->substr(open + 1, close - open - 1);
  std::istringstream fields(text->substr(close + 1));
  std::string skipped;
  if (!(fields >> skipped >> process->parent)) return false;
  constexpr int kBetween = 17;  // fields between the parent's id and the start time
  for (int i = 0; i < kBetween; ++i) fields >> skipped;
  return static_cast<bool>(fields >> process->started);
}

}  // namespace

std::string HydraProxy() {
  long pid = getppid();
  for (int i = 0; i < kMostAncestors && pid > 0; ++i) {
    Process process;
    if (!ReadProcess(pid, &process)) return "";
    if (process.name == kProxyName) return fmt::format("{} started {}", pid, process.started);
    pid = process.parent;
  }
  return "";
}

}  // namespace inccl::bootstrap

namespace inccl {
namespace {

constexpr int kMostRanks = 1 << 20;

using Names = std::initializer_list<const char*>;

// Reads variables and remembers the first error.
class Reader {
 public:
  Reader(const GetEnv& get, Launcher* launcher) : get_(get), launcher_(launcher) {}

  bool Has(const char* name) const { return !Text(name).empty(); }
  bool HasAll(Names names) const {
    return std::all_of(names.begin(), names.end(), [this](const char* name) { return Has(name); });
  }
  std::string_view Text(const char* name) const {
    const char* value = get_(name);
    return value == nullptr ? std::string_view() : std::string_view(value);
  }

  // The first of these variables that is set, else `otherwise`; -1: one of them must be set.
  int Number(Names names, int otherwise) {
    for (const char* name : names) {
      const std::string_view text = Text(name);
      if (text.empty()) continue;
      int number = 0;
      const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (error != std::errc() || stop != text.data() + text.size() || number < 0 ||
          number > kMostRanks) {
        Complain(fmt::format("{}: \"{}\" is not a number in [0, {}]", name, text, kMostRanks));
        return 0;
      }
      return number;
    }
    if (otherwise < 0) Complain(fmt::format("{} is not set", *names.begin()));
    return otherwise;
  }

  // Adds the variables that are set to the job's name. Returns false if none is set.
  bool AddToJob(Names names) {
    bool any = false;
    for (const char* name : names) {
      if (!Has(name)) continue;
      AddToJob(name, Text(name));
      any = true;
    }
    return any;
  }
  void AddToJob(std::string_view name, std::string_view value) {
    launcher_->job += fmt::format("{}={}\n", name, value);
  }
  // True if the user has named the job, so the launcher need not.
  bool HasJobName() const { return Has("INCCL_JOB"); }
  void AddToSecret(Names names) {
    for (const char* name : names) {
      if (Has(name)) launcher_->secret += fmt::format("{}={}\n", name, Text(name));
    }
  }

  void Complain(const std::string& what) {
    if (status_.ok()) status_ = InvalidUsage(fmt::format("{}: {}", launcher_->kind, what));
  }
  // `here` is the number of ranks on this host according to the variable `name`.
  void NoteRanksHere(int here, const char* name) {
    if (here == launcher_->nranks) return;
    launcher_->elsewhere =
        fmt::format("{} of {} ranks are on this host ({})", here, launcher_->nranks, name);
  }

  void NoteNodesOfSlurm() {
    const int nodes = Number({"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}, 1);
    if (nodes <= 1) return;
    launcher_->elsewhere =
        fmt::format("the ranks are on {} hosts (SLURM_STEP_NUM_NODES, SLURM_NNODES)", nodes);
  }

  Status Finish() {
    if (launcher_->nranks < 1) Complain("the number of ranks is 0");
    if (launcher_->rank >= launcher_->nranks) {
      Complain(fmt::format("rank {} of {} ranks", launcher_->rank, launcher_->nranks));
    }
    return status_;
  }

 private:
  const GetEnv& get_;
  Launcher* const launcher_;
  Status status_;
};

void ReadOwn(Reader* r, Launcher* l) {
  l->rank = r->Number({"INCCL_RANK"}, -1);
  l->nranks = r->Number({"INCCL_SIZE"}, -1);
  if (!r->HasJobName()) {
    r->Complain(
        "INCCL_JOB is not set; ranks that no launcher has started need it: a name that the ranks "
        "of this job share and no other job of this user has");
  }
}

void ReadOpenMpi(Reader* r, Launcher* l) {
  l->rank = r->Number({"OMPI_COMM_WORLD_RANK"}, -1);
  l->nranks = r->Number({"OMPI_COMM_WORLD_SIZE"}, -1);
  r->NoteRanksHere(r->Number({"OMPI_COMM_WORLD_LOCAL_SIZE"}, l->nranks),
                   "OMPI_COMM_WORLD_LOCAL_SIZE");
  // A job's number is short; its server's address distinguishes two jobs with the same number.
  if (!r->AddToJob({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMIX_SERVER_URI2"}) &&
      !r->HasJobName()) {
    r->Complain("neither PMIX_NAMESPACE nor OMPI_MCA_ess_base_jobid nor INCCL_JOB is set");
  }
  r->AddToSecret({"OMPI_MCA_orte_precondition_transports"});
}

void ReadPmi(Reader* r, Launcher* l) {
  l->rank = r->Number({"PMI_RANK"}, -1);
  l->nranks = r->Number({"PMI_SIZE"}, -1);
  if (r->Has("MPI_LOCALNRANKS") || r->Has("PMI_LOCAL_SIZE")) {
    r->NoteRanksHere(r->Number({"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"}, l->nranks),
                     "MPI_LOCALNRANKS");
  } else {
    r->NoteNodesOfSlurm();  // srun --mpi=pmi2
  }
  if (r->AddToJob({"PMI_JOBID", "PMIX_NAMESPACE", "PMI_PORT"}) || r->HasJobName()) return;
  // Hydra's proxy comes first, because Hydra may run several jobs in one Slurm allocation.
  if (const std::string proxy = bootstrap::HydraProxy(); !proxy.empty()) {
    r->AddToJob("hydra_pmi_proxy", proxy);
  } else if (r->HasAll({"SLURM_JOB_ID", "SLURM_STEP_ID"})) {
    r->AddToJob({"SLURM_JOB_ID", "SLURM_STEP_ID"});
  } else {
    r->Complain(
        "neither PMI_JOBID nor INCCL_JOB is set, and no process above this one is Hydra's proxy "
        "(hydra_pmi_proxy)");
  }
}

void ReadTorch(Reader* r, Launcher* l) {
  l->rank = r->Number({"RANK"}, -1);
  l->nranks = r->Number({"WORLD_SIZE"}, -1);
  r->NoteRanksHere(r->Number({"LOCAL_WORLD_SIZE"}, l->nranks), "LOCAL_WORLD_SIZE");
  if (!r->Has("MASTER_ADDR") || !r->Has("MASTER_PORT")) {
    if (!r->HasJobName()) r->Complain("MASTER_ADDR and MASTER_PORT, or INCCL_JOB, are not set");
  }
  r->AddToJob({"MASTER_ADDR", "MASTER_PORT"});
}

void ReadSlurm(Reader* r, Launcher* l) {
  // Each step of a Slurm job is a job of its own.
  if (!r->HasAll({"SLURM_JOB_ID", "SLURM_STEP_ID"}) && !r->HasJobName()) {
    r->Complain(
        "SLURM_JOB_ID and SLURM_STEP_ID are not set, so srun has not started this process; a batch "
        "script starts its ranks with srun (ranks that srun does not start need INCCL_RANK, "
        "INCCL_SIZE and INCCL_JOB)");
  }
  l->rank = r->Number({"SLURM_PROCID"}, -1);
  l->nranks = r->Number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, -1);
  r->NoteNodesOfSlurm();
  r->AddToJob({"SLURM_JOB_ID", "SLURM_STEP_ID"});
}

struct LauncherSource {
  const char* kind;
  Names present;  // this launcher is chosen if all of them are set
  void (*read)(Reader*, Launcher*);
};

// Launchers may start other launchers, so the most specific one comes first.
const LauncherSource kSources[] = {
    {"INCCL_RANK", {"INCCL_RANK"}, ReadOwn},
    {"INCCL_RANK", {"INCCL_SIZE"}, ReadOwn},
    {"torchrun", {"RANK", "TORCHELASTIC_RUN_ID"}, ReadTorch},
    {"Open MPI", {"OMPI_COMM_WORLD_RANK"}, ReadOpenMpi},
    {"PMI", {"PMI_RANK"}, ReadPmi},
    {"RANK and WORLD_SIZE", {"RANK", "WORLD_SIZE"}, ReadTorch},
    {"Slurm", {"SLURM_PROCID"}, ReadSlurm},
};

}  // namespace

Result<Launcher> FindLauncher(const GetEnv& get) {
  for (const LauncherSource& source : kSources) {
    Launcher launcher;
    launcher.kind = source.kind;
    Reader reader(get, &launcher);
    bool present = true;
    for (const char* name : source.present) present = present && reader.Has(name);
    if (!present) continue;
    // torchrun's agent restarts ranks under any launcher, and each restart is a job of its own.
    reader.AddToJob({"INCCL_JOB", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"});
    launcher.run = launcher.job;
    launcher.job = launcher.kind + "\n" + launcher.run;
    source.read(&reader, &launcher);
    if (Status status = reader.Finish(); !status.ok()) return status;
    return launcher;
  }
  return InvalidUsage(
      "no launcher found; looked for INCCL_RANK and INCCL_SIZE (and INCCL_JOB), "
      "OMPI_COMM_WORLD_RANK, PMI_RANK, RANK and WORLD_SIZE (and MASTER_ADDR, MASTER_PORT), "
      "SLURM_PROCID");
}

}  // namespace inccl
