#include "gpipe/distributed/links/testing/certificates.h"

#include <openssl/asn1.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

namespace gpipe::testing {
namespace {

constexpr long kDay = 24 * 3600;

void check(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(std::string("OpenSSL: ") + what);
}

struct File {
  explicit File(const std::string& path) : file(std::fopen(path.c_str(), "w")) {
    check(file, "no file");
  }
  ~File() { std::fclose(file); }
  std::FILE* const file;
};

}  // namespace

struct Authority::State {
  std::string folder, file;
  EVP_PKEY* key = nullptr;
  X509* certificate = nullptr;
  long serial = 1;
};

namespace {

EVP_PKEY* new_key(const std::string& path) {
  EVP_PKEY* const key = ::EVP_EC_gen("P-256");
  check(key, "no key");
  const File file(path);
  check(::PEM_write_PrivateKey(file.file, key, nullptr, nullptr, 0, nullptr,
                               nullptr) == 1,
        "no key file");
  return key;
}

void add_extension(X509* certificate, int name, const char* value) {
  X509_EXTENSION* const extension =
      ::X509V3_EXT_conf_nid(nullptr, nullptr, name, value);
  check(extension && ::X509_add_ext(certificate, extension, -1) == 1,
        "no extension");
  ::X509_EXTENSION_free(extension);
}

// Signs a certificate for `key` by the authority, or by itself.
X509* new_certificate(const std::string& path, const std::string& name,
                      EVP_PKEY* key, long serial, int days, X509* issuer,
                      EVP_PKEY* issuer_key) {
  X509* const result = ::X509_new();
  check(result, "no certificate");
  ::X509_set_version(result, X509_VERSION_3);
  ::ASN1_INTEGER_set(::X509_get_serialNumber(result), serial);
  ::X509_gmtime_adj(::X509_getm_notBefore(result), -10 * kDay);
  ::X509_gmtime_adj(::X509_getm_notAfter(result), days * kDay);
  ::X509_set_pubkey(result, key);
  // A common name has at most 64 characters.
  const std::string short_name =
      name.substr(name.size() - std::min<std::size_t>(name.size(), 60));
  ::X509_NAME_add_entry_by_txt(
      ::X509_get_subject_name(result), "CN", MBSTRING_UTF8,
      reinterpret_cast<const unsigned char*>(short_name.c_str()), -1, -1, 0);
  ::X509_set_issuer_name(result,
                         ::X509_get_subject_name(issuer ? issuer : result));
  if (!issuer) add_extension(result, NID_basic_constraints, "critical,CA:TRUE");
  check(::X509_sign(result, issuer ? issuer_key : key, ::EVP_sha256()) > 0,
        "no signature");
  const File file(path);
  check(::PEM_write_X509(file.file, result) == 1, "no certificate file");
  return result;
}

}  // namespace

Authority::Authority() : state_(std::make_unique<State>()) {
  const char* const parent = std::getenv("TEST_TMPDIR");
  state_->folder = std::string(parent ? parent : "/tmp") + "/authority-XXXXXX";
  check(::mkdtemp(state_->folder.data()), "no folder");
  state_->file = state_->folder + "/authority.pem";
  state_->key = new_key(state_->folder + "/authority.key");
  state_->certificate =
      new_certificate(state_->file, state_->folder, state_->key,
                      state_->serial++, 10, nullptr, nullptr);
}

Authority::~Authority() {
  ::X509_free(state_->certificate);
  ::EVP_PKEY_free(state_->key);
  std::filesystem::remove_all(state_->folder);
}

internal::Identity Authority::identity(const std::string& name, int days) {
  const std::string path = state_->folder + "/" + name;
  EVP_PKEY* const key = new_key(path + ".key");
  X509* const certificate =
      new_certificate(path + ".pem", name, key, state_->serial++, days,
                      state_->certificate, state_->key);
  ::X509_free(certificate);
  ::EVP_PKEY_free(key);
  return {"", path + ".pem", path + ".key", state_->file};
}

const std::string& Authority::file() const { return state_->file; }
const std::string& Authority::folder() const { return state_->folder; }

}  // namespace gpipe::testing
