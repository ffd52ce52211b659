#include "gpipe/distributed/links/testing/strangers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "gpipe/distributed/links/connect.h"
#include "gpipe/distributed/links/credentials.h"
#include "gpipe/distributed/links/hello.h"
#include "gpipe/distributed/links/link_error.h"
#include "gpipe/distributed/links/socket.h"
#include "gpipe/distributed/links/testing/certificates.h"
#include "gpipe/processes/descriptor.h"

namespace gpipe::testing {
namespace {

using internal::Credentials;
using internal::Descriptor;
using internal::Identity;

constexpr char kAddress[] = "127.0.0.1";

// Returns a connected socket, or -1.
Descriptor connected(int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  ::inet_pton(AF_INET, kAddress, &address.sin_addr);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address),
                sizeof address) != 0) {
    return Descriptor();
  }
  return socket;
}

std::string read_until_closed(int socket, int patience_ms) {
  std::string text;
  std::array<char, 4096> buffer;
  pollfd event = {socket, POLLIN, 0};
  while (::poll(&event, 1, patience_ms) > 0) {
    const ssize_t size = ::recv(socket, buffer.data(), buffer.size(), 0);
    if (size <= 0) break;
    text.append(buffer.data(), size);
  }
  return text;
}

// Passes bytes on between a client and a port, and records the client's.
std::string relay(int listening, int port) {
  std::string recorded;
  const Descriptor client(::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC));
  const Descriptor server = connected(port);
  if (client.get() < 0 || server.get() < 0) return recorded;
  std::array<char, 4096> buffer;
  while (true) {
    std::array<pollfd, 2> events = {
        {{client.get(), POLLIN, 0}, {server.get(), POLLIN, 0}}};
    if (::poll(events.data(), events.size(), 2000) <= 0) return recorded;
    for (const int from : {0, 1}) {
      if (!events[from].revents) continue;
      const ssize_t size =
          ::recv(events[from].fd, buffer.data(), buffer.size(), 0);
      if (size <= 0) return recorded;
      ::send(events[1 - from].fd, buffer.data(), size, MSG_NOSIGNAL);
      if (from == 0) recorded.append(buffer.data(), size);
    }
  }
}

// Tries to join as rank 1. Returns whether that succeeded.
bool joins(int port, const Credentials& credentials) {
  try {
    internal::connect_to(
        kAddress, port, credentials, internal::Hello{1, 0, 0},
        std::chrono::steady_clock::now() + std::chrono::milliseconds(300));
    return true;
  } catch (const internal::LinkError&) {
    return false;
  }
}

std::string random_bytes(std::mt19937& random) {
  std::string bytes(1 + random() % 2000, 0);
  for (char& each : bytes) each = static_cast<char>(random());
  return bytes;
}

}  // namespace

std::string send_garbage(int port, const std::string& bytes, int patience_ms) {
  const Descriptor socket = connected(port);
  if (socket.get() < 0) return "";
  ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  return read_until_closed(socket.get(), patience_ms);
}

std::string recorded_handshake(int port, const std::string& secret) {
  const Descriptor listening = internal::listen_on(kAddress, 0);
  std::string recorded;
  std::thread relaying([&] { recorded = relay(listening.get(), port); });
  const Credentials credentials(Identity{secret, "", "", ""});
  joins(internal::port_of(listening), credentials);
  relaying.join();
  return recorded;
}

int visit(int port, int count, unsigned seed, const std::string& recorded) {
  std::mt19937 random(seed);
  Authority other;
  const Credentials wrong_secret(
      Identity{"another secret of a stranger", "", "", ""});
  const Credentials wrong_authority(other.identity("stranger"));
  int let_in = 0;
  for (int k = 0; k < count; ++k) {
    switch ((seed + k) % kKindsOfStrangers) {
      case 0:
        connected(port);  // and closed at once
        break;
      case 1:
        send_garbage(port, random_bytes(random), 20);
        break;
      case 2:
        send_garbage(port, "GET / HTTP/1.1\r\nHost: gpipe\r\n\r\n", 20);
        break;
      case 3:  // LibTorch's store: VALIDATE and a magic number
        send_garbage(port, std::string("\x00\x3c\x85\xf7\x3c", 5), 20);
        break;
      case 4:
        let_in += joins(port, wrong_secret);
        break;
      case 5:
        send_garbage(port, recorded, 20);
        break;
      case 6:
        let_in += joins(port, wrong_authority);
        break;
      default: {  // part of a handshake, which it does not finish
        send_garbage(port, recorded.substr(0, 1 + random() % 200), 1);
        break;
      }
    }
  }
  return let_in;
}

}  // namespace gpipe::testing
