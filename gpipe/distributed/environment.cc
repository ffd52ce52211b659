#include "gpipe/distributed/environment.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "gpipe/base/text.h"
#include "gpipe/distributed/world_options.h"

namespace gpipe {
namespace {

using internal::refuse;

constexpr int kNoLimit = std::numeric_limits<int>::max();

// Returns nullopt if `text` has anything but digits, or does not fit into an
// int.
std::optional<int> to_number(std::string_view text) {
  if (text.starts_with('-')) return {};
  return internal::read_number<int>(text);
}

// The variables of the environment, with checks.
class Variables {
 public:
  explicit Variables(const GetVariable& get) : get_(get) {}

  bool has(const char* name) const { return get_(name) != nullptr; }

  std::optional<std::string> text(const char* name) const {
    const char* const value = get_(name);
    if (!value) return {};
    return value;
  }

  // Returns a number in `least` ... `most`, or nullopt if the variable is not
  // set. Throws std::invalid_argument for other values; `why` is added to the
  // text.
  std::optional<int> number(const char* name, int least, int most,
                            const std::string& why = "") const {
    const auto value = text(name);
    if (!value) return {};
    const auto number = to_number(*value);
    if (number && least <= *number && *number <= most) return number;
    refuse(name, " is '", *value, "', but must be a whole number, ",
           most == kNoLimit ? absl::StrCat(least, " or more")
                            : absl::StrCat("from ", least, " to ", most),
           why);
  }

  // Returns a rank below `size`, or 0 if the variable is not set.
  int rank(const char* name, const char* size_name, int size) const {
    return number(name, 0, size - 1,
                  ", since " + std::string(size_name) + " is " +
                      std::to_string(size))
        .value_or(0);
  }

 private:
  const GetVariable& get_;
};

// The names of a launcher's variables.
struct Names {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;  // nullptr: the launcher has none
  const char* local_size;
};

constexpr Names kTorchrun = {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi = {
    "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kHydra = {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
                          "MPI_LOCALNRANKS"};
constexpr Names kSlurm = {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", nullptr,
                          nullptr};
constexpr Names kPmi = {"PMI", "PMI_RANK", "PMI_SIZE", nullptr, nullptr};
constexpr Names kPmix = {"PMIx", "PMIX_RANK", "WORLD_SIZE", nullptr, nullptr};

// Returns whether both variables are set. Throws std::invalid_argument if only
// one is; the text says what to set the other one to.
bool has_pair(const Variables& variables, const char* rank, const char* size,
              const char* where) {
  const auto rank_text = variables.text(rank);
  const auto size_text = variables.text(size);
  if (rank_text && !size_text) {
    refuse(rank, " is '", *rank_text, "', but ", size,
           " is not set: set it to the number of ranks", where);
  }
  if (size_text && !rank_text) {
    refuse(size, " is '", *size_text, "', but ", rank,
           " is not set: set it to the number of this process among the ranks",
           where, ", from 0");
  }
  return rank_text.has_value();
}

LaunchEnvironment read_ranks(const Variables& variables, const Names& names) {
  LaunchEnvironment result;
  has_pair(variables, names.rank, names.size, "");
  result.world_size = *variables.number(names.size, 1, kNoLimit);
  result.rank = variables.rank(names.rank, names.size, result.world_size);
  result.source =
      std::string(names.launcher) + " (" + names.rank + ", " + names.size + ")";
  if (!names.local_rank || !has_pair(variables, names.local_rank,
                                     names.local_size, " on this machine")) {
    return result;
  }
  result.local_world_size =
      *variables.number(names.local_size, 1, result.world_size,
                        ", since " + std::string(names.size) + " is " +
                            std::to_string(result.world_size));
  result.local_rank = variables.rank(names.local_rank, names.local_size,
                                     result.local_world_size);
  return result;
}

// ---- Slurm

// Returns the number of tasks on machine `node` from a list such as "2(x3),1",
// which stands for 2, 2, 2, 1.
int tasks_on(const char* name, const std::string& list, int node) {
  int machines = 0;
  const std::vector<std::string> entries = absl::StrSplit(list, ',');
  for (std::string_view entry : entries) {
    std::optional<int> times = 1;
    const std::size_t bracket = entry.find("(x");
    if (bracket != std::string_view::npos && entry.back() == ')') {
      times = to_number(entry.substr(bracket + 2, entry.size() - bracket - 3));
      entry = entry.substr(0, bracket);
    }
    const auto tasks = to_number(entry);
    if (!tasks || *tasks < 1 || !times || *times < 1) {
      refuse(name, " is '", list,
             "', but must be a list of numbers of tasks such as 2(x3),1");
    }
    if (node - machines < *times) return *tasks;
    machines += *times;
  }
  refuse("SLURM_NODEID is ", node, ", but ", name, " is '", list,
         "', that is of ", machines, " machines: it must be from 0 to ",
         machines - 1);
}

// Returns the number of tasks on this machine.
int slurm_local_size(const Variables& variables, int world_size) {
  const int node = variables.number("SLURM_NODEID", 0, kNoLimit).value_or(0);
  // The variable of the step comes first, because its job may have more tasks.
  for (const char* name :
       {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    if (const auto list = variables.text(name)) {
      return tasks_on(name, *list, node);
    }
  }
  // The maximum for a machine.
  if (const auto most =
          variables.number("SLURM_NTASKS_PER_NODE", 1, kNoLimit)) {
    return std::min(*most, world_size);
  }
  if (world_size == 1) return 1;
  refuse(
      "none of SLURM_STEP_TASKS_PER_NODE, SLURM_TASKS_PER_NODE and "
      "SLURM_NTASKS_PER_NODE is set: set the last one to the number of ranks "
      "on "
      "this machine");
}

// Returns the first host of a list: "node003" for "node[003-005,9],other",
// "a1-b1c" for "a1-b[1-2]c".
std::string first_host(const char* name, const std::string& list) {
  const auto fail = [&] {
    refuse(name, " is '", list,
           "', but must be a list of hosts such as node[003-005,9],other; or "
           "set MASTER_ADDR to the host of rank 0");
  };
  std::string host;
  for (std::size_t at = 0; at < list.size() && list[at] != ',';) {
    if (list[at] == ']') fail();
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    // The first number in the brackets, with its leading zeros.
    const std::size_t end = list.find(']', at);
    if (end == std::string::npos) fail();
    const std::string inside = list.substr(at + 1, end - at - 1);
    const std::string first = inside.substr(0, inside.find_first_of(",-"));
    if (!to_number(first)) fail();
    host += first;
    at = end + 1;
  }
  if (host.empty()) fail();
  return host;
}

// Returns the host of rank 0, or "" if the variables do not tell.
std::string slurm_master(const Variables& variables) {
  // MASTER_ADDR takes precedence, so the lists need not even be valid.
  if (variables.has("MASTER_ADDR")) return "";
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (const auto list = variables.text(name)) return first_host(name, *list);
  }
  return "";
}

LaunchEnvironment read_slurm(const Variables& variables) {
  LaunchEnvironment result = read_ranks(variables, kSlurm);
  result.local_world_size = slurm_local_size(variables, result.world_size);
  result.local_rank =
      variables
          .number("SLURM_LOCALID", 0, result.local_world_size - 1,
                  ", since the number of tasks on this machine is " +
                      std::to_string(result.local_world_size))
          .value_or(0);
  // In the script of a batch job, no launcher has started the other ranks.
  if (result.world_size > 1 && !variables.has("SLURM_STEP_ID") &&
      !variables.has("SLURM_STEPID")) {
    result.source += ", but not SLURM_STEP_ID: was it started by srun?";
  }
  result.master_address = slurm_master(variables);
  if (const auto job = variables.text("SLURM_JOB_ID")) {
    // The last four digits. The whole number may have more than 31 bits.
    const std::string_view last(job->data() +
                                std::max<int>(0, job->size() - 4));
    const auto number = to_number(last);
    if (!number || job->find_first_not_of("0123456789") != std::string::npos) {
      refuse("SLURM_JOB_ID is '", *job,
             "', but must be a whole number, 0 or more");
    }
    result.master_port = 15000 + *number;
  }
  return result;
}

// ---- All launchers

LaunchEnvironment read_any(const Variables& variables) {
  const auto has = [&](const char* name) { return variables.has(name); };
  if (has(kTorchrun.rank)) {
    LaunchEnvironment result = read_ranks(variables, kTorchrun);
    result.store_is_served =
        variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    return result;
  }
  if (has(kOpenMpi.rank)) return read_ranks(variables, kOpenMpi);
  if (has(kHydra.rank) && has(kHydra.local_rank)) {
    return read_ranks(variables, kHydra);
  }
  if (has(kSlurm.rank) && has(kSlurm.size)) return read_slurm(variables);
  if (has(kPmi.rank)) return read_ranks(variables, kPmi);
  if (has(kPmix.rank)) return read_ranks(variables, kPmix);
  has_pair(variables, kTorchrun.rank, kTorchrun.size, "");
  LaunchEnvironment alone;
  alone.source = "no launcher (RANK and similar variables are not set)";
  return alone;
}

// Sets the address and the port in `result`, which has Slurm's values already.
void read_master(const Variables& variables, LaunchEnvironment& result) {
  if (const auto address = variables.text("MASTER_ADDR")) {
    if (address->empty()) {
      refuse(
          "MASTER_ADDR is '', but must be the host name or address of the "
          "machine of rank 0");
    }
    result.master_address = *address;
  } else if (result.master_address.empty()) {
    if (result.local_world_size < result.world_size) {
      refuse("MASTER_ADDR is not set: set it to the host name or address of ",
             "the machine of rank 0, the same for all ranks. (It would be ",
             "127.0.0.1 if all ", result.world_size,
             " ranks were on one machine, but ", result.local_world_size,
             " of them ", result.local_world_size == 1 ? "is" : "are",
             " on this one, according to ", result.source, ".)");
    }
    result.master_address = "127.0.0.1";
  }
  if (const auto port = variables.number("MASTER_PORT", 1, 65535)) {
    result.master_port = *port;
  } else if (result.master_port == 0) {
    result.master_port = 29500;  // torchrun's default
  }
}

}  // namespace

LaunchEnvironment read_environment(const GetVariable& get) {
  const Variables variables(get);
  LaunchEnvironment result = read_any(variables);
  read_master(variables, result);
  return result;
}

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

// A run that asks for what there is no more must not start without it.
void refuse_secrets() {
  for (const char* const name : {"GPIPE_SECRET_FILE", "GPIPE_TLS_CERTIFICATE",
                                 "GPIPE_TLS_KEY", "GPIPE_TLS_AUTHORITY"}) {
    if (variable(name).empty()) continue;
    internal::refuse(name,
                     " is set, but connections between ranks are not "
                     "encrypted, and whoever reaches their ports can take "
                     "part: unset it, and keep others out by the network "
                     "(docs/security.md)");
  }
}

}  // namespace

WorldOptions WorldOptions::from_environment() {
  const LaunchEnvironment found = read_environment();
  WorldOptions options;
  options.rank = found.rank;
  options.size = found.world_size;
  options.local_rank = found.local_rank;
  options.address = found.master_address;
  options.port = found.master_port;
  options.store_is_served = found.store_is_served;
  options.backend = variable("GPIPE_BACKEND");
  refuse_secrets();
  return options;
}

}  // namespace gpipe
