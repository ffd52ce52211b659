#include "gpipe/distributed/links/mesh.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <array>
#include <exception>
#include <iterator>
#include <set>
#include <sstream>
#include <utility>

#include "gpipe/distributed/links/connect.h"
#include "gpipe/distributed/links/link_error.h"
#include "gpipe/threads/background_thread.h"

namespace gpipe::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(5);

// Where a rank listens.
struct Place {
  std::string address;
  int port = 0;
  uint64_t token = 0;
};

std::string text_of(const Place& place) {
  return place.address + " " + std::to_string(place.port) + " " +
         std::to_string(place.token);
}

// Blocks until the rank has told its place.
Place place_of(int rank, const MeshOptions& options,
               Clock::time_point deadline) {
  std::string text;
  while ((text = options.ask(rank)).empty()) {
    if (Clock::now() >= deadline) {
      throw LinkError(
          LinkError::Cause::kNetwork,
          "rank " + std::to_string(rank) + " has not told where it listens");
    }
    std::this_thread::sleep_for(kLook);
  }
  std::istringstream words(text);
  Place place;
  words >> place.address >> place.port >> place.token;
  return place;
}

}  // namespace

Mesh::Mesh(MeshOptions options)
    : options_(std::move(options)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC)) {
  const int rank = options_.rank;
  if (options_.size > 1) {
    // No rank connects to the last one.
    const bool listens = rank + 1 < options_.size;
    Descriptor listening =
        listens ? listen_on(options_.address, 0) : Descriptor();
    const Place own{options_.address, listens ? port_of(listening) : 0,
                    random_token()};
    greeter_ = std::make_unique<Greeter>(
        std::move(listening), options_.credentials,
        Hello{rank, -1, own.token, options_.shares_memory},
        [this](Socket& socket, const Hello& hello) {
          return take(socket, hello);
        },
        options_.refusals);
    if (listens) options_.tell(text_of(own));
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;  // links have their address there
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  thread_ = background_thread([this] { run(); });
}

Mesh::~Mesh() {
  stop_connecting();
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) < 0) std::terminate();
  thread_.join();
  for (const auto& link : links_.all()) {
    link->close("this rank has closed the connection");
  }
}

void Mesh::stop_connecting() {
  std::unique_ptr<Greeter> greeter;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    greeter = std::move(greeter_);
  }
  // Without the mutex: the greeter's thread may need it before it ends.
  greeter.reset();
}

PeerLink& Mesh::link(int rank) {
  if (rank < 0 || rank >= options_.size || rank == options_.rank) {
    throw LinkError(LinkError::Cause::kNetwork,
                    "there is no connection from rank " +
                        std::to_string(options_.rank) + " to rank " +
                        std::to_string(rank));
  }
  return *links_.of(rank, [&] {
    return rank > options_.rank ? waiting_link(rank) : make_link(rank);
  });
}

// Returns the link with a rank that connects to this one.
std::shared_ptr<PeerLink> Mesh::waiting_link(int rank) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!greeter_) {
      throw LinkError(
          LinkError::Cause::kNetwork,
          "rank " + std::to_string(rank) + " can no longer connect");
    }
  }
  return std::make_shared<PeerLink>(
      epoll_.get(), Clock::now() + options_.timeout,
      [rank, address = options_.address, refusals = options_.refusals] {
        const std::string refused = refusals->summary();
        return "no connection to " + address + " from rank " +
               std::to_string(rank) + (refused.empty() ? "" : "; " + refused);
      });
}

// Returns the link with a rank to which this one connects.
std::shared_ptr<PeerLink> Mesh::make_link(int rank) {
  const auto deadline = Clock::now() + options_.timeout;
  const Place place = place_of(rank, options_, deadline);
  auto connecting = std::make_unique<Connecting>(
      place.address, place.port, *options_.credentials,
      Hello{options_.rank, rank, place.token, options_.shares_memory},
      deadline);
  // The greeter reports a missing connection.
  const auto link = std::make_shared<PeerLink>(
      epoll_.get(), Clock::time_point::max(), [] { return std::string(); });
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!greeter_) {
    throw LinkError(LinkError::Cause::kNetwork,
                    "there is no connection to rank " + std::to_string(rank) +
                        ", and no more are made");
  }
  greeter_->connect(
      std::move(connecting),
      [link, rank](Socket* socket, const std::string& error) {
        if (socket) {
          link->attach(*socket);
        } else {
          link->close("rank " + std::to_string(rank) + ": " + error);
        }
      });
  return link;
}

// See Greeter::Take.
std::string Mesh::take(Socket& socket, const Hello& hello) {
  if (hello.from <= options_.rank || hello.from >= options_.size) {
    return "rank " + std::to_string(hello.from) + " does not connect to rank " +
           std::to_string(options_.rank) + " of " +
           std::to_string(options_.size);
  }
  const auto link =
      links_.of(hello.from, [&] { return waiting_link(hello.from); });
  const std::string reason = link->attach(socket);
  if (!reason.empty()) {
    return "rank " + std::to_string(hello.from) + ": " + reason;
  }
  if (++arrived_ == options_.size - 1 - options_.rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (greeter_) greeter_->stop_listening();
  }
  return "";
}

void Mesh::run() {
  std::array<epoll_event, 64> events;
  std::set<PeerLink*> busy;  // links that have more than was handled
  while (true) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(),
                                   busy.empty() ? -1 : 0);
    for (int k = 0; k < count; ++k) {
      auto* const link = static_cast<PeerLink*>(events[k].data.ptr);
      if (!link) return;
      if (link->on_events()) {
        busy.insert(link);
      } else {
        busy.erase(link);
      }
    }
    for (auto each = busy.begin(); each != busy.end();) {
      each = (*each)->on_events() ? std::next(each) : busy.erase(each);
    }
  }
}

}  // namespace gpipe::internal
