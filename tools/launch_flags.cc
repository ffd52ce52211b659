#include "tools/launch_flags.h"

#include <algorithm>
#include <climits>
#include <cstddef>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/base/text.h"

DEFINE_int32(nproc, 1, "Number of ranks on this machine.");
DEFINE_int32(nnodes, 1,
             "Number of machines. Start the launcher on each of them, with the "
             "same --nproc, --master_addr and --master_port.");
DEFINE_int32(node_rank, 0, "Index of this machine, from 0.");
DEFINE_string(master_addr, "",
              "Host name or address of machine 0. '': 127.0.0.1, for one "
              "machine.");
DEFINE_int32(master_port, 0,
             "A free TCP port of machine 0. 0: any port, for one machine.");
DEFINE_bool(tag_output, true,
            "Print the rank before each line, for example "
            "[2].");
DEFINE_double(grace, 5,
              "When a rank has failed: seconds for the others to report and "
              "end. Then they get SIGTERM, and after the same time SIGKILL.");
DEFINE_int32(restarts, 0,
             "When a rank has failed: how often all ranks are started again, "
             "after all have ended. The program itself must go on from its "
             "last run checkpoint, as examples:train does with --run_dir.");

namespace {

using gpipe::internal::refuse;
using Flag = gflags::CommandLineFlagInfo;

bool is_ours(const Flag& flag) {
  return flag.filename.find("tools/launch") != std::string::npos;
}

std::optional<Flag> find_flag(const std::string& name) {
  Flag flag;
  const bool is_flag = gflags::GetCommandLineFlagInfo(name.c_str(), &flag);
  if (!is_flag || !is_ours(flag)) return {};
  return flag;
}

std::string type_text(const Flag& flag) {
  if (flag.type == "bool") return "neither true nor false";
  return flag.type == "double" ? "not a number" : "not a whole number";
}

// Sets the flags as gflags does. gflags itself would end the program with exit
// code 1 for a wrong flag, which is an exit code of ranks here.
void read_flags(const std::vector<std::string>& words) {
  for (std::size_t k = 0; k < words.size(); ++k) {
    const std::size_t begin = words[k].find_first_not_of('-');
    if (begin != 1 && begin != 2) {
      refuse("unexpected '", words[k],
             "': the program and its flags come after --, for example launch "
             "--nproc=4 -- program --its_flags");
    }
    const std::size_t equals = std::min(words[k].find('='), words[k].size());
    std::string name = words[k].substr(begin, equals - begin);
    std::optional<std::string> value;
    if (equals < words[k].size()) value = words[k].substr(equals + 1);
    auto flag = find_flag(name);
    if (!flag && !value && name.rfind("no", 0) == 0) {
      flag = find_flag(name.substr(2));
      if (flag && flag->type != "bool") flag.reset();
      name = name.substr(2);
      value = "false";
    }
    if (!flag) {
      refuse("unknown flag '", words[k],
             "': see --help; flags of the program come after --");
    }
    if (!value && flag->type == "bool") value = "true";
    if (!value) {
      if (k + 1 == words.size()) refuse("--", name, " has no value");
      value = words[++k];
    }
    if (gflags::SetCommandLineOption(name.c_str(), value->c_str()).empty()) {
      refuse("--", name, "=", *value, ": '", *value, "' is ", type_text(*flag));
    }
  }
}

void check_flags() {
  if (FLAGS_nproc < 1) refuse("--nproc=", FLAGS_nproc, ": must be at least 1");
  if (FLAGS_nnodes < 1 || FLAGS_nnodes > INT_MAX / FLAGS_nproc) {
    refuse("--nnodes=", FLAGS_nnodes, ": must be at least 1, and at most ",
           INT_MAX / FLAGS_nproc, " with --nproc=", FLAGS_nproc);
  }
  if (FLAGS_node_rank < 0 || FLAGS_node_rank >= FLAGS_nnodes) {
    refuse("--node_rank=", FLAGS_node_rank, ": must be from 0 to ",
           FLAGS_nnodes - 1, ", since --nnodes=", FLAGS_nnodes);
  }
  if (FLAGS_master_port < 0 || FLAGS_master_port > 65535) {
    refuse("--master_port=", FLAGS_master_port,
           ": must be from 1 to 65535, or 0 for any");
  }
  if (!(FLAGS_grace >= 0 && FLAGS_grace <= 1e6)) {
    refuse("--grace=", FLAGS_grace, ": must be from 0 to 1000000 seconds");
  }
  if (FLAGS_restarts < 0) {
    refuse("--restarts=", FLAGS_restarts, ": must be at least 0");
  }
  if (FLAGS_nnodes > 1 &&
      (FLAGS_master_addr.empty() || FLAGS_master_port == 0)) {
    refuse("--nnodes=", FLAGS_nnodes,
           " needs --master_addr and --master_port, with the same values on "
           "all machines");
  }
}

void print_help() {
  std::cout
      << R"(launch: starts a program several times, as the ranks of a distributed job.

  launch [flags] -- program [its flags]

Examples:
  Four ranks on this machine:
    ./bazelw run //tools:launch -- --nproc=4 -- bazel-bin/my/train --epochs=3
  Two machines with eight ranks each; on the first one and on the second one:
    launch --nproc=8 --nnodes=2 --node_rank=0 --master_addr=node0 \
        --master_port=29500 -- ./train
    launch --nproc=8 --nnodes=2 --node_rank=1 --master_addr=node0 \
        --master_port=29500 -- ./train
  A run that goes on after up to three failures:
    launch --nproc=4 --restarts=3 -- ./train --distributed --run_dir=/runs/1
  The environment of a rank:
    launch --nproc=2 -- env

A program without a slash is searched for in PATH. Under `bazel run`, paths are
relative to the folder in which you typed the command.

Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
MASTER_PORT, as with torchrun. If OMP_NUM_THREADS is not set, each rank gets it
with an equal share of the cores. If the environment sets no thresholds of
glibc's malloc, MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ make it keep
what a step frees for the next step. The stdin of a rank is empty. Its lines are
printed whole, to stdout or stderr. Lines of more than 64 KiB are split. A
progress bar, whose texts a \r separates, is printed as it comes.

SIGINT (Ctrl-C), SIGTERM, SIGHUP and SIGQUIT are forwarded to all ranks, which
are not started again after that. When a rank fails, the others have --grace
seconds to end. No rank outlives the launcher, even if that is killed, nor do
processes that a rank starts, unless they leave its process group.
TORCHELASTIC_RESTART_COUNT tells a rank how often it was started again. With
several machines, each launcher starts its own ranks again: give all of them the
same --restarts.

Flags:
)";
  std::vector<Flag> flags;
  gflags::GetAllFlags(&flags);
  for (const Flag& flag : flags) {
    if (!is_ours(flag)) continue;
    std::cout << "  --" << flag.name << "="
              << (flag.default_value.empty() ? "''" : flag.default_value)
              << "\n      " << flag.description << "\n";
  }
  std::cout << R"(
Exit codes: 0 if all ranks returned 0; the exit code of the rank that failed
first in the last start, or 128 + n if signal n ended it; 2 if a flag is wrong;
127 if the program cannot be started.
)";
}

}  // namespace

std::vector<std::string> read_command_line(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto dashes = std::find(words.begin(), words.end(), "--");
  const std::vector<std::string> flags(words.begin(), dashes);
  for (const char* help : {"-h", "-help", "--help"}) {
    if (std::count(flags.begin(), flags.end(), help) == 0) continue;
    print_help();
    return {};
  }
  read_flags(flags);
  check_flags();
  if (words.end() - dashes < 2) {
    refuse(
        "no program: it comes after --, for example launch --nproc=4 -- "
        "program --its_flags");
  }
  return {dashes + 1, words.end()};
}
