#include "gpipe/distributed/links/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "gpipe/distributed/links/link_error.h"

namespace gpipe::internal {
namespace {

// Records that are written with one key. AES-GCM allows 2^24.5 (RFC 8446, 5.5).
constexpr std::size_t kRecordsPerKey = std::size_t{1} << 22;

// Returns what a failed handshake means for the user, or "".
std::string meaning(unsigned long error) {
  if (ERR_GET_LIB(error) != ERR_LIB_SSL) return "";
  switch (ERR_GET_REASON(error)) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
      return "the other end has another secret";
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
      return "the other end has another secret, or another authority of the "
             "same name";
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_SHARED_CIPHER:
      return "the other end has no secret or another kind of credentials";
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
      return "one end has no certificate";
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return "the other end does not know the authority of this end's "
             "certificate";
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
      return "the other end does not speak TLS";
    default:
      return "";
  }
}

}  // namespace

std::string peer_of(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) !=
          0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host,
                    sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  const std::string text = host;
  return (address.ss_family == AF_INET6 ? "[" + text + "]" : text) + ":" + port;
}

void Socket::Free::operator()(SSL* ssl) const { ::SSL_free(ssl); }

Socket::Socket(Descriptor socket, const Credentials& credentials, TlsRole role)
    : socket_(std::move(socket)),
      ssl_(credentials.new_ssl(role)),
      credentials_(&credentials),
      role_(role),
      peer_(peer_of(fd())) {
  ::fcntl(fd(), F_SETFL, ::fcntl(fd(), F_GETFL) | O_NONBLOCK);
  const int yes = 1;
  ::setsockopt(fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  if (ssl_ && ::SSL_set_fd(ssl_.get(), fd()) != 1) {
    throw LinkError(LinkError::Cause::kNetwork, take_tls_error());
  }
}

Socket::Socket(Socket&&) noexcept = default;
Socket& Socket::operator=(Socket&&) noexcept = default;

Socket::~Socket() {
  if (!ssl_) return;
  if (is_ready_ && !is_broken_) ::SSL_shutdown(ssl_.get());
  ::ERR_clear_error();
}

Socket::Status Socket::status(int result, const char* call) {
  const int number = errno;
  const int error = ::SSL_get_error(ssl_.get(), result);
  if (error == SSL_ERROR_WANT_READ) return Status::kNeedsRead;
  if (error == SSL_ERROR_WANT_WRITE) return Status::kNeedsWrite;
  is_broken_ = true;
  const unsigned long reason = ::ERR_peek_last_error();
  const bool is_end =
      error == SSL_ERROR_ZERO_RETURN ||
      (error == SSL_ERROR_SYSCALL && (number == 0 || number == ECONNRESET)) ||
      (ERR_GET_LIB(reason) == ERR_LIB_SSL &&
       ERR_GET_REASON(reason) == SSL_R_UNEXPECTED_EOF_WHILE_READING);
  if (is_end || error == SSL_ERROR_SYSCALL) {
    ::ERR_clear_error();
    fail(call, is_end ? 0 : number);
  }
  std::string what = meaning(reason);
  const long verified = ::SSL_get_verify_result(ssl_.get());
  if (verified != X509_V_OK) {
    what = std::string("the other end's certificate is refused: ") +
           ::X509_verify_cert_error_string(verified);
  }
  const std::string text = take_tls_error();
  what = what.empty() ? text : what + " (" + text + ")";
  throw LinkError(LinkError::Cause::kRefused,
                  std::string(call) + " with " + peer_ + ": " + what);
}

// `number`: of the system's error; 0 if the connection has been closed.
void Socket::fail(const char* call, int number) {
  is_broken_ = true;
  throw LinkError(LinkError::Cause::kNetwork,
                  number == 0 ? "Connection closed by peer " + peer_
                              : std::string(call) + " " + peer_ + ": " +
                                    std::strerror(number));
}

Socket::Status Socket::plain_status(ssize_t result, Status wait,
                                    const char* call) {
  if (result < 0 && (errno == EAGAIN || errno == EINTR)) return wait;
  const bool is_end = result == 0 || errno == ECONNRESET || errno == EPIPE;
  fail(call, is_end ? 0 : errno);
}

Socket::Status Socket::handshake() {
  if (!ssl_) return Status::kDone;
  ::ERR_clear_error();
  errno = 0;
  const int result = ::SSL_do_handshake(ssl_.get());
  if (result != 1) return status(result, "the TLS handshake");
  is_ready_ = true;
  return Status::kDone;
}

Socket::Status Socket::read(void* to, std::size_t size, std::size_t& done) {
  done = 0;
  if (!ssl_) {
    const ssize_t result = ::recv(fd(), to, size, 0);
    if (result <= 0) return plain_status(result, Status::kNeedsRead, "reading");
    done = static_cast<std::size_t>(result);
    return Status::kDone;
  }
  ::ERR_clear_error();
  errno = 0;
  const int result = ::SSL_read_ex(ssl_.get(), to, size, &done);
  return result == 1 ? Status::kDone : status(result, "reading");
}

Socket::Status Socket::write(const void* from, std::size_t size,
                             std::size_t& done) {
  done = 0;
  if (!ssl_) {
    const ssize_t result = ::send(fd(), from, size, MSG_NOSIGNAL);
    if (result <= 0) {
      return plain_status(result, Status::kNeedsWrite, "writing");
    }
    done = static_cast<std::size_t>(result);
    return Status::kDone;
  }
  ::ERR_clear_error();
  errno = 0;
  const int result = ::SSL_write_ex(ssl_.get(), from, size, &done);
  if (result != 1) return status(result, "writing");
  if (++records_ == kRecordsPerKey) {
    records_ = 0;
    ::SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
  }
  return Status::kDone;
}

void Socket::shut_down() {
  is_broken_ = true;
  ::shutdown(fd(), SHUT_RDWR);
}

Credentials::Proof Socket::proof(TlsRole role) const {
  return credentials_->proof(ssl_.get(), role);
}

}  // namespace gpipe::internal
