// Which rank of a distributed job this process is, read from the variables that
// its launcher has set. No LibTorch.
#pragma once

#include <cstdlib>
#include <functional>
#include <string>

namespace gpipe {

// The description of this process in the variables of its launcher.
struct LaunchEnvironment {
  int rank = 0;  // of this process: 0 ... world_size - 1
  int world_size = 1;
  int local_rank = 0;  // among the ranks on this machine
  int local_world_size = 1;
  // The place of the rendezvous: the host name or address of the machine of
  // rank 0, and a TCP port of that machine.
  std::string master_address;
  int master_port = 0;
  // True if another process already listens there (torchrun's agent); rank 0
  // then connects like all other ranks. If false, rank 0 listens.
  bool store_is_served = false;
  // The launcher and its variables, for messages: "torchrun (RANK,
  // WORLD_SIZE)".
  std::string source;
};

// A function that returns the value of a variable, or nullptr if it is not set,
// as std::getenv does.
using GetVariable = std::function<const char*(const char* name)>;

// Reads the variables of the first launcher whose variables are set, in the
// order of docs/distributed.md#how-do-i-start-the-ranks. Returns rank 0 of 1 if
// there is none.
//
// MPI comes before Slurm because mpirun in a Slurm job starts its ranks with
// its own daemons. The ranks inherit the daemons' Slurm variables, which say
// one rank per machine, or even rank 0 for all ranks. For the same reason
// SLURM_PROCID without SLURM_NTASKS, as in a batch script, is ignored.
//
// If the two local variables are missing, this is taken for the only rank on
// its machine. Under Slurm, the local size is in SLURM_STEP_TASKS_PER_NODE,
// SLURM_TASKS_PER_NODE or SLURM_NTASKS_PER_NODE.
//
// `master_address` is MASTER_ADDR. If that is not set: under Slurm, the first
// host of SLURM_STEP_NODELIST or SLURM_JOB_NODELIST; else 127.0.0.1, if all
// ranks are on this machine.
//
// `master_port` is MASTER_PORT. If that is not set: under Slurm, 15000 + the
// last four digits of SLURM_JOB_ID, so that jobs on one machine are unlikely to
// use the same port; else 29500.
//
// `store_is_served` is true if TORCHELASTIC_USE_AGENT_STORE is "True", which
// torchrun sets.
//
// Throws std::invalid_argument, which says the variable, its text and what it
// should be, if
// - a variable is not a number or not in its range (ranks: 0 to size - 1),
// - only one variable of a pair is set (RANK without WORLD_SIZE),
// - MASTER_ADDR is needed and not set.
//
// `get`: by default, the variables of this process.
//
// Threads: as std::getenv, must not run while another thread changes the
// environment. Does not change the environment.
LaunchEnvironment read_environment(const GetVariable& get = std::getenv);

}  // namespace gpipe
