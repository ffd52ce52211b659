// The first message in each direction of a connection. No LibTorch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "gpipe/distributed/links/credentials.h"
#include "gpipe/distributed/links/shared_memory.h"
#include "gpipe/distributed/links/socket.h"

namespace gpipe::internal {

// Who sends, and for whom.
struct Hello {
  int32_t from = 0, to = 0;  // ranks
  // A random number of the end that listens, published in the store. 0: none.
  uint64_t token = 0;
  // Whether this end shares memory with the other one if it can. Not sent.
  bool shares = false;
  // The client's: where its memory is. The server's: a process other than 0 if
  // it has mapped that.
  SharedMemory::Place memory = {};
};

constexpr std::size_t kHelloBytes = 64;
using HelloBytes = std::array<uint8_t, kHelloBytes>;

// Returns the message of the own end of `socket`, with its proof of the secret
// if there is one.
HelloBytes encode_hello(const Hello& hello, const Socket& socket);

// Returns what the other end of `socket` has sent. Throws LinkError, kRefused,
// if it is no such message, or if its proof is wrong.
Hello decode_hello(const HelloBytes& bytes, const Socket& socket);

// An exchange of hellos over a socket that is connected, or about to be: the
// TLS handshake if there is TLS, then the client's message, then the server's
// answer. The server answers only if the client's message is right. After that
// the socket has shared memory if both ends could map it.
class Greeting {
 public:
  // `own`: what this end sends. The server's `to` is set to the client's
  // `from`. Throws LinkError.
  Greeting(Socket socket, const Hello& own);

  // Continues. Returns kDone when the exchange is complete. Throws LinkError if
  // the other end does not belong to the world, or means another rank or token.
  Socket::Status advance();

  // The other end's message, and the socket, once advance() is done.
  const Hello& theirs() const { return theirs_; }
  Socket& socket() { return socket_; }
  const Socket& socket() const { return socket_; }

 private:
  enum class Step { kHandshake, kWrite, kRead, kDone };

  Socket::Status write();
  Socket::Status read();
  void check_theirs();
  void offer_memory();
  void settle_memory();

  Socket socket_;
  Hello own_, theirs_;
  Step step_ = Step::kHandshake;
  HelloBytes out_{}, in_{};
  std::size_t written_ = 0, read_ = 0;
};

}  // namespace gpipe::internal
