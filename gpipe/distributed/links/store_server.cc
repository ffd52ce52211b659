#include "gpipe/distributed/links/store_server.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <utility>

#include "gpipe/distributed/links/connect.h"
#include "gpipe/distributed/links/hello.h"
#include "gpipe/distributed/links/link_error.h"
#include "gpipe/threads/background_thread.h"

namespace gpipe::internal {
namespace {

using Clock = std::chrono::steady_clock;
using Status = Socket::Status;

constexpr auto kPatience = std::chrono::minutes(1);

int64_t number_in(const std::string& text) {
  int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

struct StoreServer::Client {
  explicit Client(Socket connection) : socket(std::move(connection)) {}

  Socket socket;
  Status needs = Status::kNeedsRead;
  std::string in, out;
};

StoreServer::StoreServer(Descriptor listening,
                         std::shared_ptr<const Credentials> credentials,
                         std::shared_ptr<Refusals> refusals)
    : credentials_(std::move(credentials)),
      refusals_(std::move(refusals)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  thread_ = background_thread([this] { run(); });
  greeter_ = std::make_unique<Greeter>(
      std::move(listening), credentials_, Hello{0, -1, 0},
      [this](Socket& socket, const Hello&) {
        std::lock_guard<std::mutex> lock(mutex_);
        arrived_.push_back(std::make_unique<Client>(std::move(socket)));
        wake();
        return std::string();
      },
      refusals_);
}

StoreServer::~StoreServer() {
  greeter_.reset();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  wake();
  thread_.join();
}

void StoreServer::stop_listening() { greeter_.reset(); }

void StoreServer::wake() {
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) < 0) std::terminate();
}

StoreReply StoreServer::call(const StoreRequest& request) {
  using Kind = StoreRequest::Kind;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = values_.find(request.key);
  const bool is_there = found != values_.end();
  StoreReply reply{is_there, "", 0};
  switch (request.kind) {
    case Kind::kSet:
      values_[request.key] = request.value;
      break;
    case Kind::kGet:
      if (is_there) reply.value = found->second;
      break;
    case Kind::kAdd:
      reply.number = (is_there ? number_in(found->second) : 0) + request.number;
      values_[request.key] = std::to_string(reply.number);
      break;
    case Kind::kCompareSet:
      // As c10d's stores do: an absent key equals an empty value.
      if (is_there ? found->second == request.value : request.value.empty()) {
        values_[request.key] = reply.value = request.desired;
      } else {
        reply.value = is_there ? found->second : request.value;
      }
      break;
    case Kind::kDelete:
      if (is_there) values_.erase(found);
      break;
    case Kind::kCount:
      reply.number = static_cast<int64_t>(values_.size());
      break;
  }
  return reply;
}

void StoreServer::run() {
  std::vector<pollfd> events;
  while (true) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (is_ending_) return;
      for (auto& each : arrived_) clients_.push_back(std::move(each));
      arrived_.clear();
    }
    events = {{wake_.get(), POLLIN, 0}};
    for (const auto& each : clients_) {
      const short wanted = each->needs == Status::kNeedsRead ? POLLIN : POLLOUT;
      events.push_back({each->socket.fd(), wanted, 0});
    }
    if (::poll(events.data(), events.size(), -1) < 0) continue;
    uint64_t count = 0;
    if (events[0].revents && ::read(wake_.get(), &count, sizeof count) < 0) {
      continue;
    }
    for (std::size_t k = 0; k < clients_.size(); ++k) {
      if (!events[1 + k].revents) continue;
      try {
        serve(*clients_[k]);
      } catch (const std::exception&) {
        // The rank has left, or sends nonsense. Its failure detector tells.
        clients_[k].reset();
      }
    }
    clients_.erase(std::remove(clients_.begin(), clients_.end(), nullptr),
                   clients_.end());
  }
}

// Reads, answers and writes until that would block.
void StoreServer::serve(Client& client) {
  std::array<char, 4096> buffer;
  while (true) {
    std::size_t done = 0;
    if (!client.out.empty()) {
      client.needs =
          client.socket.write(client.out.data(), client.out.size(), done);
      if (client.needs != Status::kDone) return;
      client.out.erase(0, done);
      continue;
    }
    if (const auto message = take_message(client.in)) {
      const auto request = decode_request(*message);
      if (!request) throw std::invalid_argument("no request");
      client.out = framed(encode(call(*request)));
      continue;
    }
    client.needs = client.socket.read(buffer.data(), buffer.size(), done);
    if (client.needs != Status::kDone) return;
    client.in.append(buffer.data(), done);
  }
}

StoreClient::StoreClient(Socket socket,
                         std::shared_ptr<const Credentials> credentials)
    : credentials_(std::move(credentials)), socket_(std::move(socket)) {}

StoreReply StoreClient::call(const StoreRequest& request) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto deadline = Clock::now() + kPatience;
  const auto wait = [&](Status status) {
    if (!wait_for(socket_, status, deadline)) {
      throw LinkError(LinkError::Cause::kNetwork,
                      "no answer from the store at " + socket_.peer());
    }
  };
  std::string out = framed(encode(request));
  std::size_t done = 0;
  while (!out.empty()) {
    const Status status = socket_.write(out.data(), out.size(), done);
    if (status != Status::kDone) {
      wait(status);
      continue;
    }
    out.erase(0, done);
  }
  std::array<char, 4096> buffer;
  std::string in;
  while (true) {
    if (const auto message = take_message(in)) {
      if (const auto reply = decode_reply(*message)) return *reply;
      throw LinkError(LinkError::Cause::kNetwork,
                      "no answer of a store from " + socket_.peer());
    }
    const Status status = socket_.read(buffer.data(), buffer.size(), done);
    if (status == Status::kDone) {
      in.append(buffer.data(), done);
    } else {
      wait(status);
    }
  }
}

}  // namespace gpipe::internal
