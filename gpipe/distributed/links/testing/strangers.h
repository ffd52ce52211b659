// Processes that do not belong to a world, at its ports.
#pragma once

#include <string>

namespace gpipe::testing {

// Connects to 127.0.0.1:`port`, sends `bytes`, and reads until the other end
// closes the connection or sends nothing for `patience_ms`. Returns what it has
// read.
std::string send_garbage(int port, const std::string& bytes,
                         int patience_ms = 2000);

// Joins at a port as a rank with this secret, and returns the bytes that the
// rank has sent.
std::string recorded_handshake(int port, const std::string& secret);

// The kinds of strangers that visit() sends in turn: one that leaves at once,
// random bytes, an HTTP request, a client of LibTorch's store, another secret,
// a recorded handshake, a certificate of another authority, and a handshake
// that is broken off.
constexpr int kKindsOfStrangers = 8;

// Sends `count` strangers to 127.0.0.1:`port`, one after another, of kinds that
// depend on `seed`. `recorded`: what recorded_handshake() has returned. Returns
// how many were accepted: 0, unless there is a bug.
int visit(int port, int count, unsigned seed, const std::string& recorded);

}  // namespace gpipe::testing
