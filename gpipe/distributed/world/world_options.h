// Public: the options with which a process connects to a World.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace gpipe {

// The files of a process's certificate, in PEM format.
struct TlsFiles {
  std::string certificate;  // of this process, then its chain
  std::string key;          // its private key, without a password
  // The certificates of the authorities whose certificates are accepted. A
  // process with any of these certificates may be any rank, so use an authority
  // of your own.
  std::string authority;
};

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

  // What carries tensors on the CPU between ranks: "gpipe" for gpipe's own
  // connections, or "gloo" for c10d's ProcessGroupGloo. All ranks must have the
  // same. "gloo" does not share memory, and cannot use `secret` and `tls`.
  std::string backend = "gpipe";

  // With the backend "gpipe": whether messages between ranks of the same
  // machine and user go through memory that both have mapped (2 MiB for each
  // pair), which takes less time than a socket. Ranks that cannot map each
  // other's memory, for example in different containers, use sockets.
  bool shares_memory = true;

  // How long to wait for anything: for other ranks to connect, for a message.
  // Waits for messages begin at the beginning of a step or after the message
  // before, so it must be longer than a step. Values above 24 days are clamped
  // (also of `heartbeat_timeout`).
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  // Each rank sends heartbeats to up to four others, also while it computes. A
  // rank that has sent nothing for this long is reported as frozen.
  std::chrono::milliseconds heartbeat_timeout = std::chrono::seconds(10);

  // Who may take part. If either is given, every connection between ranks is
  // encrypted (TLS 1.3), and both ends prove that they belong to the world
  // before a byte is believed. All ranks must have the same. With both, a rank
  // needs both. See docs/security.md.
  //
  // A text that all ranks know and nobody else, of at least 16 bytes; make it
  // with `openssl rand -hex 32`. It is never sent.
  std::string secret;
  TlsFiles tls;
  // Called, on any thread, with a line of text about a connection that was
  // refused; of each address about the 1st, 10th, 100th, ... Empty: the line is
  // a warning of LibTorch, which is written to stderr.
  std::function<void(const std::string&)> on_refused;

  // Returns the options for the variables that torchrun, Slurm, Open MPI, MPICH
  // and //tools:launch set; see environment.h. Without any of these: one
  // process. `secret` is the text of the file GPIPE_SECRET_FILE, without
  // newlines at its end; `tls` is GPIPE_TLS_CERTIFICATE, GPIPE_TLS_KEY and
  // GPIPE_TLS_AUTHORITY; GPIPE_BACKEND is `backend`, and
  // GPIPE_SHARED_MEMORY=0 unsets `shares_memory`. Throws
  // std::invalid_argument if the variables are incomplete or out of range, or
  // if the file cannot be read.
  static WorldOptions from_environment();
};

}  // namespace gpipe
