// The options with which a process connects to a World.
#pragma once

#include <chrono>
#include <string>

namespace gpipe {

// The place of this process in the world, and how long it waits for others.
struct WorldOptions {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the processes of this machine

  // The place of the store for the rendezvous: on rank 0, or, if
  // `store_is_served`, in a launcher (torchrun).
  std::string address = "127.0.0.1";
  int port = 29500;
  bool store_is_served = false;
  // Ranks meet only ranks of the same session. Worlds of different programs
  // that share a served store need different ones.
  std::string session;

  // The address or host name of this machine to which other ranks connect.
  // Empty: the address from which the system reaches `address`. That is the
  // loopback if `address` is.
  std::string own_address;

  // What carries tensors between ranks, by c10d's names: "gloo", "nccl", or one
  // for each type of device, as in "cpu:gloo,cuda:nccl". On the CPU it is gloo.
  // Empty: all that this program has, gloo and, if it is built with NCCL, nccl.
  // A name for accelerators makes Transfers::kAuto mean kTested. All ranks must
  // have the same.
  std::string backend;

  // How long to wait for anything: for other ranks to connect, for a message.
  // Waits for messages begin at the beginning of a step or after the message
  // before, so it must be longer than a step. Values above 24 days are clamped
  // (also of `heartbeat_timeout`).
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  // Each rank sends heartbeats to up to four others, also while it computes. A
  // rank that has sent nothing for this long is reported as frozen.
  std::chrono::milliseconds heartbeat_timeout = std::chrono::seconds(10);

  // Returns the options for the variables that torchrun, Slurm, Open MPI, MPICH
  // and //tools:launch set; see environment.h. Without any of these: one
  // process. GPIPE_BACKEND is `backend`. Throws std::invalid_argument if the
  // variables are incomplete or out of range, or if one is set that earlier
  // versions read to keep others out (GPIPE_SECRET_FILE, GPIPE_TLS_*).
  static WorldOptions from_environment();
};

}  // namespace gpipe
