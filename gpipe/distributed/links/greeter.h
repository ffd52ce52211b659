// The handshakes of connections between processes of the same world.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/distributed/links/connect.h"
#include "gpipe/distributed/links/credentials.h"
#include "gpipe/distributed/links/hello.h"
#include "gpipe/distributed/links/refusals.h"
#include "gpipe/distributed/links/socket.h"
#include "gpipe/processes/descriptor.h"

namespace gpipe::internal {

// Accepts connections at a port, makes connections to other ports, and greets,
// on a thread of its own until it is destroyed. No connection can delay another
// one: none is waited for, at most kPending that were accepted are being
// greeted, and a new one then replaces the oldest.
class Greeter {
 public:
  static constexpr int kPending = 256;

  // Takes a greeted connection; called on the greeter's thread. Returns ""
  // if it has taken the socket, or the reason why it refuses it.
  using Take = std::function<std::string(Socket& socket, const Hello&)>;
  // Takes a connection that connect() has made, or null and the reason why
  // there is none; called on the greeter's thread.
  using Made = std::function<void(Socket* socket, const std::string& error)>;

  // `listening`: a TCP socket that listens; -1 for none.
  // `own`: this rank (`from`) and token.
  Greeter(Descriptor listening, std::shared_ptr<const Credentials> credentials,
          const Hello& own, Take take, std::shared_ptr<Refusals> refusals);
  // Closes the port. Connections that are not greeted yet are closed without a
  // call of Take or Made.
  ~Greeter();
  Greeter(const Greeter&) = delete;
  Greeter& operator=(const Greeter&) = delete;

  // Begins to make a connection; `made` is called once. Thread-safe.
  void connect(std::unique_ptr<Connecting> connecting, Made made);

  // Closes the port soon. Thread-safe.
  void stop_listening();

 private:
  struct Pending;
  using Call = std::pair<std::unique_ptr<Connecting>, Made>;

  void run();
  // Does what other threads have asked for. Returns whether to go on.
  bool obey();
  // Returns the milliseconds until the next deadline, -1 for none.
  int patience() const;
  void greet(const std::vector<pollfd>& events);
  void make();
  void accept_some();
  // Returns whether `pending` is finished, whether taken or refused.
  bool advance(Pending& pending);
  void wake();

  Descriptor listening_, wake_;
  const std::shared_ptr<const Credentials> credentials_;
  const Hello own_;
  const Take take_;
  const std::shared_ptr<Refusals> refusals_;

  std::mutex mutex_;  // protects what other threads ask for
  std::vector<Call> asked_;
  bool is_ending_ = false, is_closing_ = false;

  // The thread's.
  std::vector<std::unique_ptr<Pending>> pending_;  // the oldest first
  std::vector<Call> calls_;
  std::thread thread_;
};

// Returns a random number for Hello::token. Throws std::runtime_error if the
// system has none.
uint64_t random_token();

}  // namespace gpipe::internal
