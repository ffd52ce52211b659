// What a process proves to the other processes of its world. No LibTorch.
#pragma once

#include <openssl/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace gpipe::internal {

// A secret, or the files of a certificate, or both, or nothing.
struct Identity {
  std::string secret;
  // Files in PEM format: the certificate (with its chain), its private key, and
  // the certificates of the authorities that are trusted.
  std::string certificate, key, authority;

  bool empty() const {
    return secret.empty() && certificate.empty() && key.empty() &&
           authority.empty();
  }
};

enum class TlsRole : uint8_t { kClient = 1, kServer = 2 };

// The TLS 1.3 settings of a process, made from its identity.
//
// - With a certificate, both ends must have one that an authority of the file
//   `authority` has signed.
// - With a secret only, the key derived from it is an external pre-shared key
//   of TLS 1.3 (RFC 8446, 4.2.11), with an ephemeral Diffie-Hellman exchange.
//   Both ends prove by HMAC-SHA256 over the handshake, with fresh random
//   numbers of both, that they know the key.
// - With neither, connections are open: without TLS.
// - With a secret, proof() must be exchanged after the handshake. So a
//   certificate and a secret are both required if both are given.
//
// Thread-safe.
class Credentials {
 public:
  static constexpr std::size_t kLeastSecret = 16;  // bytes
  using Proof = std::array<uint8_t, 32>;

  // Throws std::invalid_argument if the secret is too short, if one of the
  // three files is missing, or if a file cannot be used.
  explicit Credentials(const Identity& identity);

  // Returns whether connections are open.
  bool are_open() const { return !context_; }

  // Returns a new TLS object for one end of a connection, or null if
  // connections are open. The caller frees it.
  SSL* new_ssl(TlsRole role) const;

  // Returns the proof that the end `role` of this connection knows the secret:
  // HMAC-SHA256 with the secret over a value that both ends derive from the
  // completed handshake (RFC 8446, 7.5), and over `role`. A proof of one
  // connection is worth nothing in another. Zeros if there is no secret.
  Proof proof(SSL* ssl, TlsRole role) const;

 private:
  struct Free {
    void operator()(SSL_CTX* context) const;
  };
  struct KeyCallbacks;  // of OpenSSL
  void use_key();
  void use_files(const Identity& identity);

  const std::string secret_;
  Proof key_{};  // the pre-shared key
  std::unique_ptr<SSL_CTX, Free> context_;
};

// Returns the reason of the last error of OpenSSL on this thread, and forgets
// all of them.
std::string take_tls_error();

}  // namespace gpipe::internal
