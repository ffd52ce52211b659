// Which rank of a distributed job this process is, as whoever started it says.
// No LibTorch.
#pragma once

#include <functional>
#include <string>

namespace gpipe {

// What a launcher's variables say of this process.
struct LaunchEnvironment {
  int rank = 0;  // of this process: 0 ... world_size - 1
  int world_size = 1;
  int local_rank = 0;  // among the ranks on this machine
  int local_world_size = 1;
  // Where the ranks meet: the machine of rank 0, as a host name or an address,
  // and a TCP port there.
  std::string master_address;
  int master_port = 0;
  // Somebody listens there already (torchrun's agent), so that rank 0 connects
  // like all others. Else it is rank 0 who listens.
  bool store_is_served = false;
  // Which start of the job this is, where a launcher starts it anew and serves
  // one store to all (torchrun): "0", "1", ...; else "".
  std::string attempt;
  // Who said all this, for messages: "torchrun (RANK, WORLD_SIZE)".
  std::string source;
};

// The value of a variable, or nullptr. As std::getenv.
using GetVariable = std::function<const char*(const char* name)>;

// Reads the first of these that is there:
//
//   torchrun, //tools:launch  RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   Open MPI's mpirun         OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK,
//                             _LOCAL_SIZE
//   MPICH's, Intel's mpiexec  PMI_RANK, PMI_SIZE, MPI_LOCALRANKID,
//                             MPI_LOCALNRANKS
//   Slurm's srun              SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID and
//                             SLURM_STEP_TASKS_PER_NODE, SLURM_TASKS_PER_NODE
//                             or SLURM_NTASKS_PER_NODE
//   PMI                       PMI_RANK, PMI_SIZE
//   PMIx                      PMIX_RANK, and WORLD_SIZE, which it does not set
//
// and with none of them rank 0 of 1. MPI goes before Slurm, since mpirun in a
// Slurm job starts its ranks by daemons of its own, from which they inherit
// Slurm's variables: one rank per machine, or even rank 0 for all. For the same
// reason SLURM_PROCID without SLURM_NTASKS, as in a batch script, means
// nothing.
//
// Where the two local variables are missing, this is the only rank on its
// machine.
//
// master_address is MASTER_ADDR. Without it: under Slurm the first host of
// SLURM_STEP_NODELIST or SLURM_JOB_NODELIST, else 127.0.0.1, if all ranks are
// on this machine. master_port is MASTER_PORT. Without it: under Slurm 15000 +
// the last four digits of SLURM_JOB_ID, so that jobs that share a machine are
// unlikely to meet (steps of one job that run at the same time need
// MASTER_PORT); else 29500. store_is_served: torchrun sets
// TORCHELASTIC_USE_AGENT_STORE=True; attempt is its
// TORCHELASTIC_RESTART_COUNT.
//
// Errors: std::invalid_argument, with the variable, its text and what it should
// be, for one that is set and no number or not in its range (ranks from 0 to
// size - 1, sizes from 1), for half of a pair (RANK without WORLD_SIZE), and
// where MASTER_ADDR is needed.
//
// Threads: as std::getenv, not while another one changes the environment, which
// this never does.
LaunchEnvironment read_environment(const GetVariable& get);
LaunchEnvironment read_environment();  // of this process

}  // namespace gpipe
