// The first message in each direction of a secured connection. No LibTorch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "gpipe/distributed/links/credentials.h"
#include "gpipe/distributed/links/tls_socket.h"

namespace gpipe::internal {

// Who sends, and for whom.
struct Hello {
  int32_t from = 0, to = 0;  // ranks
  // A random number of the end that listens, published in the store. 0: none.
  uint64_t token = 0;
};

constexpr std::size_t kHelloBytes = 64;
using HelloBytes = std::array<uint8_t, kHelloBytes>;

// Returns the message of the own end of `socket`, with its proof of the secret.
HelloBytes encode_hello(const Hello& hello, const TlsSocket& socket);

// Returns what the other end of `socket` has sent. Throws LinkError, kRefused,
// if it is no such message, or if its proof is wrong.
Hello decode_hello(const HelloBytes& bytes, const TlsSocket& socket);

// An exchange of hellos over a socket that is connected, or about to be: the
// TLS handshake, then the client's message, then the server's answer. The
// server answers only if the client's message is right.
class Greeting {
 public:
  // `own`: what this end sends. The server's `to` is set to the client's
  // `from`. Throws LinkError.
  Greeting(TlsSocket socket, const Hello& own);

  // Continues. Returns kDone when the exchange is complete. Throws LinkError if
  // the other end does not belong to the world, or means another rank or token.
  TlsSocket::Status advance();

  // The other end's message, and the socket, once advance() is done.
  const Hello& theirs() const { return theirs_; }
  TlsSocket& socket() { return socket_; }
  const TlsSocket& socket() const { return socket_; }

 private:
  enum class Step { kHandshake, kWrite, kRead, kDone };

  TlsSocket::Status write();
  TlsSocket::Status read();
  void check_theirs();

  TlsSocket socket_;
  Hello own_, theirs_;
  Step step_ = Step::kHandshake;
  HelloBytes out_{}, in_{};
  std::size_t written_ = 0, read_ = 0;
};

}  // namespace gpipe::internal
