#include "gpipe/distributed/links/credentials.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>

#include <cstring>
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "gpipe/text/refuse.h"

namespace gpipe::internal {
namespace {

// The name of the pre-shared key. It is not secret.
constexpr std::string_view kKeyName = "gpipe";
// What the key is derived for: HMAC-SHA256(secret, kKeyLabel).
constexpr std::string_view kKeyLabel = "gpipe TLS 1.3 pre-shared key";
constexpr std::string_view kProofLabel = "EXPORTER-gpipe-secret";
constexpr unsigned char kCipher[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
constexpr unsigned char kContext[] = {'g', 'p', 'i', 'p', 'e'};
constexpr char kCipherName[] = "TLS_AES_128_GCM_SHA256";

// Before main(), because the first use of OpenSSL decides. By default exit()
// destroys OpenSSL's state while connections are still served.
[[maybe_unused]] const int kept =
    ::OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);

Credentials::Proof hmac(const std::string& key, const void* data,
                        std::size_t size) {
  Credentials::Proof result;
  unsigned int length = result.size();
  if (!::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
              static_cast<const unsigned char*>(data), size, result.data(),
              &length) ||
      length != result.size()) {
    throw std::runtime_error("HMAC-SHA256 has failed: " + take_tls_error());
  }
  return result;
}

void check(bool holds, const char* what) {
  if (!holds) {
    throw std::runtime_error(std::string("OpenSSL: ") + what + ": " +
                             take_tls_error());
  }
}

}  // namespace

std::string take_tls_error() {
  const unsigned long error = ::ERR_peek_last_error();
  const char* const reason = error ? ::ERR_reason_error_string(error) : nullptr;
  std::string text = reason ? reason : "";
  if (text.empty() && error) text = "error " + std::to_string(error);
  ::ERR_clear_error();
  return text;
}

void Credentials::Free::operator()(SSL_CTX* context) const {
  ::SSL_CTX_free(context);
}

Credentials::Credentials(const Identity& identity) : secret_(identity.secret) {
  if (identity.empty()) return;
  if (!secret_.empty() && secret_.size() < kLeastSecret) {
    refuse("WorldOptions::secret has ", secret_.size(),
           " bytes, but must have at least ", kLeastSecret,
           ", so that it cannot be guessed; make one with `openssl rand -hex "
           "32`, the same for all ranks");
  }
  context_.reset(::SSL_CTX_new(::TLS_method()));
  SSL_CTX* const context = context_.get();
  check(context, "no context");
  check(::SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
            ::SSL_CTX_set_ciphersuites(context, kCipherName) == 1 &&
            ::SSL_CTX_set_num_tickets(context, 0) == 1,
        "no TLS 1.3");
  ::SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                  SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // Fewer calls of read(): several records at once.
  ::SSL_CTX_set_read_ahead(context, 1);
  ::SSL_CTX_set_default_read_buffer_len(context, 64 << 10);
  SSL_CTX_set_app_data(context, this);
  // A server that verifies needs a name for its sessions.
  check(
      ::SSL_CTX_set_session_id_context(context, kContext, sizeof kContext) == 1,
      "no session context");
  if (identity.certificate.empty() && identity.key.empty() &&
      identity.authority.empty()) {
    use_key();
  } else {
    use_files(identity);
  }
}

struct Credentials::KeyCallbacks {
  // Returns a new session that stands for the pre-shared key, or null.
  static SSL_SESSION* session_of(SSL* ssl) {
    const auto* const self = static_cast<const Credentials*>(
        SSL_CTX_get_app_data(::SSL_get_SSL_CTX(ssl)));
    SSL_SESSION* const session = ::SSL_SESSION_new();
    if (session &&
        ::SSL_SESSION_set1_master_key(session, self->key_.data(),
                                      self->key_.size()) == 1 &&
        ::SSL_SESSION_set_cipher(session, ::SSL_CIPHER_find(ssl, kCipher)) ==
            1 &&
        ::SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
        ::SSL_SESSION_set1_id_context(session, kContext, sizeof kContext) ==
            1) {
      return session;
    }
    ::SSL_SESSION_free(session);
    return nullptr;
  }

  // The client's: which key it offers.
  static int offer(SSL* ssl, const EVP_MD* hash, const unsigned char** id,
                   size_t* id_size, SSL_SESSION** session) {
    *session = nullptr;
    // `hash` is set if the server has chosen one; the key is for SHA-256 only.
    if (hash && ::EVP_MD_get_type(hash) != NID_sha256) return 1;
    *session = session_of(ssl);
    *id = reinterpret_cast<const unsigned char*>(kKeyName.data());
    *id_size = kKeyName.size();
    return *session != nullptr;
  }

  // The server's: the key of an offered name.
  static int find(SSL* ssl, const unsigned char* id, size_t id_size,
                  SSL_SESSION** session) {
    *session = nullptr;
    if (std::string_view(reinterpret_cast<const char*>(id), id_size) !=
        kKeyName) {
      return 1;
    }
    *session = session_of(ssl);
    return *session != nullptr;
  }
};

void Credentials::use_key() {
  key_ = hmac(secret_, kKeyLabel.data(), kKeyLabel.size());
  // Neither end has a certificate or trusts one, so without the key there is
  // no handshake.
  ::SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
  ::SSL_CTX_set_psk_use_session_callback(context_.get(), KeyCallbacks::offer);
  ::SSL_CTX_set_psk_find_session_callback(context_.get(), KeyCallbacks::find);
}

void Credentials::use_files(const Identity& identity) {
  const auto require = [](const std::string& file, const char* name) {
    if (file.empty()) {
      refuse("WorldOptions::tls has no ", name,
             "; it needs the files of a certificate, a key and an authority");
    }
  };
  require(identity.certificate, "certificate");
  require(identity.key, "key");
  require(identity.authority, "authority");
  SSL_CTX* const context = context_.get();
  ::ERR_clear_error();
  if (::SSL_CTX_use_certificate_chain_file(context,
                                           identity.certificate.c_str()) != 1) {
    refuse("the certificate '", identity.certificate,
           "' cannot be used: ", take_tls_error(),
           "; WorldOptions::tls needs a file in PEM format");
  }
  if (::SSL_CTX_use_PrivateKey_file(context, identity.key.c_str(),
                                    SSL_FILETYPE_PEM) != 1 ||
      ::SSL_CTX_check_private_key(context) != 1) {
    refuse("the private key '", identity.key, "' cannot be used with '",
           identity.certificate, "': ", take_tls_error(),
           "; WorldOptions::tls needs the certificate's own key, in PEM "
           "format and without a password");
  }
  if (::SSL_CTX_load_verify_locations(context, identity.authority.c_str(),
                                      nullptr) != 1) {
    refuse("the authority '", identity.authority,
           "' cannot be used: ", take_tls_error(),
           "; WorldOptions::tls needs a file of certificates in PEM format");
  }
  ::SSL_CTX_set_verify(
      context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
}

SSL* Credentials::new_ssl(TlsRole role) const {
  if (!context_) return nullptr;
  SSL* const ssl = ::SSL_new(context_.get());
  if (!ssl) throw std::bad_alloc();
  if (role == TlsRole::kClient) {
    ::SSL_set_connect_state(ssl);
  } else {
    ::SSL_set_accept_state(ssl);
  }
  return ssl;
}

Credentials::Proof Credentials::proof(SSL* ssl, TlsRole role) const {
  if (secret_.empty()) return {};
  std::array<uint8_t, 33> text;
  check(::SSL_export_keying_material(ssl, text.data(), text.size() - 1,
                                     kProofLabel.data(), kProofLabel.size(),
                                     nullptr, 0, 0) == 1,
        "no exported key");
  text.back() = static_cast<uint8_t>(role);
  return hmac(secret_, text.data(), text.size());
}

}  // namespace gpipe::internal
