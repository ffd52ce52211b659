#include "gpipe/distributed/links/hello.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "gpipe/distributed/links/link_error.h"

namespace gpipe::internal {
namespace {

// Bytes 0 to 7; a change of the protocol changes the number. Then `from`, `to`,
// `token`, `memory`, and the proof.
constexpr char kMagic[9] = "gpipe-3\n";
constexpr std::size_t kFrom = 8, kTo = 12, kToken = 16, kMemory = 24,
                      kProof = 32;
static_assert(kMemory + sizeof(SharedMemory::Place) == kProof);
static_assert(kProof + sizeof(Credentials::Proof) == kHelloBytes);

TlsRole other(TlsRole role) {
  return role == TlsRole::kClient ? TlsRole::kServer : TlsRole::kClient;
}

[[noreturn]] void refuse_peer(const Socket& socket, const std::string& why) {
  throw LinkError(LinkError::Cause::kRefused,
                  "the greeting of " + socket.peer() + ": " + why);
}

}  // namespace

HelloBytes encode_hello(const Hello& hello, const Socket& socket) {
  HelloBytes bytes{};
  std::memcpy(bytes.data(), kMagic, kFrom);
  std::memcpy(bytes.data() + kFrom, &hello.from, sizeof hello.from);
  std::memcpy(bytes.data() + kTo, &hello.to, sizeof hello.to);
  std::memcpy(bytes.data() + kToken, &hello.token, sizeof hello.token);
  std::memcpy(bytes.data() + kMemory, &hello.memory, sizeof hello.memory);
  const Credentials::Proof proof = socket.proof(socket.role());
  std::copy(proof.begin(), proof.end(), bytes.begin() + kProof);
  return bytes;
}

Hello decode_hello(const HelloBytes& bytes, const Socket& socket) {
  if (std::memcmp(bytes.data(), kMagic, kFrom) != 0) {
    refuse_peer(socket, "it is not this version of gpipe");
  }
  const Credentials::Proof proof = socket.proof(other(socket.role()));
  if (::CRYPTO_memcmp(bytes.data() + kProof, proof.data(), proof.size()) != 0) {
    refuse_peer(socket, "it has another secret");
  }
  Hello hello;
  std::memcpy(&hello.from, bytes.data() + kFrom, sizeof hello.from);
  std::memcpy(&hello.to, bytes.data() + kTo, sizeof hello.to);
  std::memcpy(&hello.token, bytes.data() + kToken, sizeof hello.token);
  std::memcpy(&hello.memory, bytes.data() + kMemory, sizeof hello.memory);
  return hello;
}

Greeting::Greeting(Socket socket, const Hello& own)
    : socket_(std::move(socket)), own_(own) {}

// Client: handshake, write, read. Server: handshake, read, write.
Socket::Status Greeting::advance() {
  const bool is_client = socket_.role() == TlsRole::kClient;
  while (step_ != Step::kDone) {
    Socket::Status status{};
    switch (step_) {
      case Step::kHandshake:
        status = socket_.handshake();
        break;
      case Step::kWrite:
        status = write();
        break;
      default:
        status = read();
    }
    if (status != Socket::Status::kDone) return status;
    if (step_ == Step::kHandshake) {
      step_ = is_client ? Step::kWrite : Step::kRead;
    } else if (step_ == Step::kWrite) {
      step_ = is_client ? Step::kRead : Step::kDone;
    } else {
      check_theirs();
      settle_memory();
      step_ = is_client ? Step::kDone : Step::kWrite;
    }
  }
  return Socket::Status::kDone;
}

Socket::Status Greeting::write() {
  if (written_ == 0) {
    if (socket_.role() == TlsRole::kClient) offer_memory();
    out_ = encode_hello(own_, socket_);
  }
  while (written_ < out_.size()) {
    std::size_t done = 0;
    const auto status =
        socket_.write(out_.data() + written_, out_.size() - written_, done);
    if (status != Socket::Status::kDone) return status;
    written_ += done;
  }
  return Socket::Status::kDone;
}

Socket::Status Greeting::read() {
  while (read_ < in_.size()) {
    std::size_t done = 0;
    const auto status =
        socket_.read(in_.data() + read_, in_.size() - read_, done);
    if (status != Socket::Status::kDone) return status;
    read_ += done;
  }
  return Socket::Status::kDone;
}

// The client's.
void Greeting::offer_memory() {
  if (!own_.shares) return;
  socket_.share(SharedMemory::make(own_.token));
  if (socket_.shared()) own_.memory = socket_.shared()->place();
}

// Keeps the memory if both ends have it.
void Greeting::settle_memory() {
  if (socket_.role() == TlsRole::kServer) {
    if (!own_.shares) return;
    socket_.share(SharedMemory::open(theirs_.memory, own_.token));
    if (socket_.shared()) own_.memory = socket_.shared()->place();
  } else if (theirs_.memory.process == 0) {
    socket_.share(nullptr);
  } else if (socket_.shared()) {
    socket_.shared()->close_file();
  }
}

void Greeting::check_theirs() {
  theirs_ = decode_hello(in_, socket_);
  if (socket_.role() == TlsRole::kServer) own_.to = theirs_.from;
  if (theirs_.to != own_.from || theirs_.from != own_.to ||
      theirs_.from == own_.from) {
    refuse_peer(socket_, "rank " + std::to_string(theirs_.from) +
                             " wants rank " + std::to_string(theirs_.to) +
                             ", but this is rank " + std::to_string(own_.from));
  }
  if (theirs_.token != own_.token) {
    refuse_peer(socket_, "rank " + std::to_string(theirs_.from) +
                             " is of another start of this world");
  }
}

}  // namespace gpipe::internal
