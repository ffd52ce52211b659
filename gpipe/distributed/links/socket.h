// One end of a connection. No LibTorch.
#pragma once

#include <openssl/types.h>
#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "gpipe/distributed/links/credentials.h"
#include "gpipe/distributed/links/shared_memory.h"
#include "gpipe/processes/descriptor.h"

namespace gpipe::internal {

// A non-blocking TCP socket, with TLS on it unless the credentials are open.
// Not thread-safe.
class Socket {
 public:
  // Why a call has returned.
  enum class Status {
    kDone,
    kNeedsRead,   // repeat the call when the socket is readable
    kNeedsWrite,  // repeat the call when the socket is writable
  };

  // `socket`: connected, or about to be. It becomes non-blocking.
  // `credentials`: must outlive this object.
  Socket(Descriptor socket, const Credentials& credentials, TlsRole role);
  Socket(Socket&&) noexcept;
  Socket& operator=(Socket&&) noexcept;
  // Tells the other end that nothing more comes, if that needs no wait.
  ~Socket();

  // Makes the handshake of TLS. Throws LinkError: kRefused if one end has not
  // proved who it is.
  Status handshake();

  // Read and write at most `size` bytes. `done` is how many were: at least one
  // if the status is kDone. Throw LinkError if the connection is closed or
  // broken.
  Status read(void* to, std::size_t size, std::size_t& done);
  Status write(const void* from, std::size_t size, std::size_t& done);

  // Ends both directions at once; the other end is told by the system.
  void shut_down();

  Credentials::Proof proof(TlsRole role) const;
  TlsRole role() const { return role_; }
  int fd() const { return socket_.get(); }

  // Memory that both ends of the connection have mapped; null if there is none.
  // The greeting sets it (hello.h).
  SharedMemory* shared() const { return shared_.get(); }
  void share(std::unique_ptr<SharedMemory> memory) {
    shared_ = std::move(memory);
  }

  // Returns the address and port of the other end.
  const std::string& peer() const { return peer_; }

 private:
  struct Free {
    void operator()(SSL* ssl) const;
  };
  // Return the status for the result of a call of OpenSSL, or of the system,
  // that is not a success. Throw LinkError if it is an error.
  Status status(int result, const char* call);
  Status plain_status(ssize_t result, Status wait, const char* call);
  [[noreturn]] void fail(const char* call, int number);

  Descriptor socket_;
  std::unique_ptr<SSL, Free> ssl_;  // null without TLS
  std::unique_ptr<SharedMemory> shared_;
  const Credentials* credentials_;
  TlsRole role_;
  std::string peer_;
  bool is_ready_ = false;    // the handshake is done
  bool is_broken_ = false;   // OpenSSL allows no more calls
  std::size_t records_ = 0;  // written with the current key
};

// Returns "address:port" of the other end of a socket, "[address]:port" for
// IPv6.
std::string peer_of(int socket);

}  // namespace gpipe::internal
