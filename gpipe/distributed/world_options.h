// Public: which process of how many this is, and where they meet.
#pragma once

#include <chrono>
#include <string>

namespace gpipe {

// Which process this is, where all meet, and how long each waits for others.
struct WorldOptions {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the processes of this machine

  // Where the store of the rendezvous is: at rank 0, which listens there,
  // unless `store_is_served` says that a launcher does (torchrun).
  std::string address = "127.0.0.1";
  int port = 29500;
  bool store_is_served = false;
  // Ranks meet those of their own session at a store that several have. A
  // launcher that starts all ranks anew counts them: what was left behind by a
  // start to which not all came is no hindrance then.
  std::string session;

  // The address or host name of this machine that the other ranks connect to.
  // Empty: the one that the system would send from to reach `address`, which is
  // the loopback where that is.
  std::string own_address;

  // How long to wait for anything: another rank's arrival, a message. Messages
  // are waited for from the beginning of a step on, or from the one before
  // them, so that it must be more than a step takes. 24 days, of this and of
  // the next one, are for ever: more count as these.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  // Each rank tells the others that it is there, also while it computes. One
  // that has not been heard of for this long is taken for frozen.
  std::chrono::milliseconds heartbeat_timeout = std::chrono::seconds(10);

  // From the variables that torchrun, Slurm, Open MPI, MPICH and //tools:launch
  // set; see environment.h. Without any: one process. std::invalid_argument for
  // variables that make no sense.
  static WorldOptions from_environment();
};

}  // namespace gpipe
