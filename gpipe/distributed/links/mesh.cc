#include "gpipe/distributed/links/mesh.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <iterator>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

#include "gpipe/distributed/links/acceptor.h"
#include "gpipe/distributed/links/connect.h"
#include "gpipe/distributed/links/hello.h"
#include "gpipe/distributed/links/link_error.h"

namespace gpipe::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(5);
constexpr uint64_t kWake = UINT64_MAX;

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
Place place_of(int rank, const MeshOptions& options) {
  std::string text;
  while ((text = options.ask(rank)).empty()) {
    if (Clock::now() >= options.deadline) {
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

// The connections that other ranks make to this one.
class Arrivals {
 public:
  explicit Arrivals(int size) : sockets_(size) {}

  // See Acceptor::Take.
  std::string take(TlsSocket& socket, const Hello& hello, int own_rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (hello.from <= own_rank ||
        hello.from >= static_cast<int>(sockets_.size())) {
      return "rank " + std::to_string(hello.from) +
             " does not connect to rank " + std::to_string(own_rank) + " of " +
             std::to_string(sockets_.size());
    }
    auto& slot = sockets_[hello.from];
    if (slot) {
      return "rank " + std::to_string(hello.from) + " is connected already";
    }
    slot = std::make_unique<TlsSocket>(std::move(socket));
    changed_.notify_all();
    return "";
  }

  // Blocks until all ranks above `own_rank` have connected. Returns those that
  // have not when `deadline` passes.
  std::vector<int> wait(int own_rank, Clock::time_point deadline) {
    std::vector<int> missing;
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, deadline, [&] {
      missing.clear();
      for (int rank = own_rank + 1; rank < static_cast<int>(sockets_.size());
           ++rank) {
        if (!sockets_[rank]) missing.push_back(rank);
      }
      return missing.empty();
    });
    return missing;
  }

  std::vector<std::unique_ptr<TlsSocket>> sockets() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::move(sockets_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<TlsSocket>> sockets_;
};

}  // namespace

std::vector<std::unique_ptr<TlsSocket>> Mesh::connect(
    const MeshOptions& options) {
  const int rank = options.rank;
  Arrivals arrivals(options.size);
  std::vector<std::unique_ptr<TlsSocket>> sockets(rank);
  if (options.size > 1) {
    Descriptor listening = listen_on(options.address, 0);
    const Place own{options.address, port_of(listening), random_token()};
    const Acceptor acceptor(
        std::move(listening), options.credentials, Hello{rank, -1, own.token},
        [&](TlsSocket& socket, const Hello& hello) {
          return arrivals.take(socket, hello, rank);
        },
        options.refusals);
    options.tell(text_of(own));
    for (int peer = 0; peer < rank; ++peer) {
      const Place place = place_of(peer, options);
      sockets[peer] = std::make_unique<TlsSocket>(
          connect_to(place.address, place.port, *options.credentials,
                     Hello{rank, peer, place.token}, options.deadline));
    }
    const std::vector<int> missing = arrivals.wait(rank, options.deadline);
    if (!missing.empty()) {
      std::string list;
      for (const int each : missing) {
        list += (list.empty() ? "" : ", ") + std::to_string(each);
      }
      const std::string refused = options.refusals->summary();
      throw LinkError(LinkError::Cause::kNetwork,
                      "no connection to " + options.address + " from rank " +
                          list + (refused.empty() ? "" : "; " + refused));
    }
  }
  auto others = arrivals.sockets();
  for (int peer = 0; peer < rank; ++peer)
    others[peer] = std::move(sockets[peer]);
  return others;
}

Mesh::Mesh(const MeshOptions& options)
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC)),
      credentials_(options.credentials) {
  auto sockets = connect(options);
  for (int rank = 0; rank < options.size; ++rank) {
    links_.push_back(sockets[rank]
                         ? std::make_shared<PeerLink>(std::move(*sockets[rank]),
                                                      epoll_.get(), rank)
                         : nullptr);
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWake;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  thread_ = std::thread([this] { run(); });
}

Mesh::~Mesh() {
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) < 0) std::terminate();
  thread_.join();
  for (const auto& link : links_) {
    if (link) link->close("this rank has closed the connection");
  }
}

PeerLink& Mesh::link(int rank) {
  if (rank < 0 || rank >= static_cast<int>(links_.size()) || !links_[rank]) {
    throw LinkError(LinkError::Cause::kNetwork,
                    "there is no connection to rank " + std::to_string(rank));
  }
  return *links_[rank];
}

void Mesh::run() {
  std::array<epoll_event, 64> events;
  // Links that have more than was handled: at first all, since the greeting may
  // have read what came behind it.
  std::set<int> busy;
  for (int rank = 0; rank < static_cast<int>(links_.size()); ++rank) {
    if (links_[rank]) busy.insert(rank);
  }
  while (true) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(),
                                   busy.empty() ? -1 : 0);
    for (int k = 0; k < count; ++k) {
      if (events[k].data.u64 == kWake) return;
      const int rank = static_cast<int>(events[k].data.u64);
      const bool is_writable = (events[k].events & EPOLLOUT) != 0;
      if (links_[rank]->on_events(is_writable)) {
        busy.insert(rank);
      } else {
        busy.erase(rank);
      }
    }
    for (auto each = busy.begin(); each != busy.end();) {
      each =
          links_[*each]->on_events(false) ? std::next(each) : busy.erase(each);
    }
  }
}

}  // namespace gpipe::internal
