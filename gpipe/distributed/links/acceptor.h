// A port that accepts connections of processes of the same world only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "gpipe/distributed/links/credentials.h"
#include "gpipe/distributed/links/hello.h"
#include "gpipe/distributed/links/refusals.h"
#include "gpipe/distributed/links/tls_socket.h"
#include "gpipe/processes/descriptor.h"

namespace gpipe::internal {

// Accepts and greets on a thread of its own, until it is destroyed; then the
// port is closed. No connection can delay another one: none is waited for, at
// most kPending are being greeted, and a new one then replaces the oldest.
class Acceptor {
 public:
  static constexpr int kPending = 256;

  // Takes a greeted connection; called on the acceptor's thread. Returns ""
  // if it has taken the socket, or the reason why it refuses it.
  using Take = std::function<std::string(TlsSocket& socket, const Hello&)>;

  // `listening`: a TCP socket that listens.
  // `own`: this rank (`from`) and token.
  Acceptor(Descriptor listening, std::shared_ptr<const Credentials> credentials,
           const Hello& own, Take take, std::shared_ptr<Refusals> refusals);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

 private:
  struct Pending;

  void run();
  void accept_some();
  // Returns whether `pending` is finished, whether taken or refused.
  bool advance(Pending& pending);

  Descriptor listening_, wake_;
  const std::shared_ptr<const Credentials> credentials_;
  const Hello own_;
  const Take take_;
  const std::shared_ptr<Refusals> refusals_;
  std::vector<std::unique_ptr<Pending>> pending_;  // the oldest first
  std::thread thread_;
};

// Returns a random number for Hello::token. Throws std::runtime_error if the
// system has none.
uint64_t random_token();

}  // namespace gpipe::internal
