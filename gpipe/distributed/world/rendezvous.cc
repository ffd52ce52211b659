#include "gpipe/distributed/world/rendezvous.h"

#include <ATen/Functions.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "gpipe/base/descriptor.h"
#include "gpipe/base/threads.h"
#include "gpipe/distributed/world/backends.h"
#include "gpipe/distributed/world/bytes.h"
#include "gpipe/distributed/world/stores.h"
#include "gpipe/distributed/world/topology.h"

namespace gpipe::internal {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Returns the addresses of a host name, as a list.
Addresses find_addresses(const std::string& name, int port, int flags,
                         int type) {
  addrinfo hints{};
  hints.ai_socktype = type;
  hints.ai_flags = flags;
  addrinfo* first = nullptr;
  const int error =
      ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &first);
  if (error != 0) {
    throw std::runtime_error("the address '" + name +
                             "' cannot be found: " + ::gai_strerror(error));
  }
  return {first, &::freeaddrinfo};
}

// Returns a socket that listens on `address` only. `port`: 0 for any free one.
// Throws std::runtime_error if the port is in use, if the address is not of
// this machine, or if it cannot be found.
Descriptor listen_on(const std::string& address, int port) {
  const auto addresses = find_addresses(address, port, AI_PASSIVE, SOCK_STREAM);
  std::string reason = "it has no address";
  for (const addrinfo* each = addresses.get(); each; each = each->ai_next) {
    Descriptor socket(
        ::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, 0));
    const int yes = 1;
    if (socket.get() >= 0 &&
        ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes,
                     sizeof yes) == 0 &&
        ::bind(socket.get(), each->ai_addr, each->ai_addrlen) == 0 &&
        ::listen(socket.get(), SOMAXCONN) == 0) {
      return socket;
    }
    reason = std::strerror(errno);
  }
  throw std::runtime_error(
      c10::str("cannot listen on ", address, ":", port, ": ", reason));
}

// Returns the address of this machine from which packets to `address` are sent.
// Sends nothing. Throws std::runtime_error if there is no route, or if the
// address cannot be found.
std::string address_towards(const std::string& address, int port) {
  // Connecting a datagram socket sends nothing; the system just chooses its
  // address.
  const auto addresses = find_addresses(address, port, 0, SOCK_DGRAM);
  for (const addrinfo* each = addresses.get(); each; each = each->ai_next) {
    const Descriptor socket(
        ::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    char text[NI_MAXHOST];
    if (::connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own),
                      &length) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text,
                      sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) {
      return text;
    }
  }
  throw std::runtime_error("there is no route to " + address);
}

using Clock = std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(20);
// The pause between two looks whether somebody listens, and how long one may
// take.
constexpr auto kKnock = std::chrono::milliseconds(100);
constexpr auto kKnockTimeout = std::chrono::milliseconds(1000);
// The pause, for each rank of the world, between two looks whether all are
// there. So the store answers at most 10,000 requests per second, whatever the
// size, which is a tenth of what one core can do.
constexpr auto kLookPerRank = std::chrono::microseconds(200);
// Extra time after the deadline, for the error of the inner thread to arrive.
constexpr auto kGrace = std::chrono::milliseconds(500);
// How long one attempt to join may take, where another one has found that there
// is no place.
constexpr auto kAttempt = std::chrono::milliseconds(1000);
// How long rank 0 keeps the store after a failure, so that others can read why.
constexpr auto kLinger = std::chrono::seconds(2);

// A key that exists if `rank` has come.
std::string rank_key(int rank) { return c10::str("rank/", rank); }
// The size of the world and the rank that was the first to say it.
constexpr char kSize[] = "size";
// The same for its backend.
constexpr char kBackend[] = "backend";
// The number of ranks that have come, and a key that exists if all have.
constexpr char kCount[] = "count", kAll[] = "all";

// The tag of the first messages of a connection. Pipelines use others (Tags),
// and so does the failure detector.
constexpr int kFirstTag = 0;
// A key of the store's server: its first world is complete.
constexpr char kComplete[] = "gpipe/complete";
// A key of a world: the failure because of which it is given up.
constexpr char kFailure[] = "failure";

// Returns the time until `deadline`, at least 1 ms.
std::chrono::milliseconds until(Clock::time_point deadline) {
  return std::max(std::chrono::duration_cast<std::chrono::milliseconds>(
                      deadline - Clock::now()),
                  std::chrono::milliseconds(1));
}

// Returns whether `socket` is connected with itself. Linux does that if nobody
// listens at the port that it has chosen for the socket.
bool is_own_peer(const Descriptor& socket) {
  sockaddr_storage own{}, peer{};
  socklen_t own_length = sizeof own, peer_length = sizeof peer;
  return ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own),
                       &own_length) == 0 &&
         ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer),
                       &peer_length) == 0 &&
         own_length == peer_length && std::memcmp(&own, &peer, own_length) == 0;
}

// Connects `socket`, which does not block, with `address`. Returns 0, or the
// number of the error.
int connect_socket(const Descriptor& socket, const addrinfo& address) {
  if (socket.get() < 0) return errno;
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno;
    pollfd connected{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    if (::poll(&connected, 1, kKnockTimeout.count()) <= 0) return ETIMEDOUT;
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return error;
  }
  if (!is_own_peer(socket)) return 0;
  // Else the port would stay in use for a while.
  const linger reset{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  return ECONNREFUSED;
}

// Waits until somebody listens at the place in `options`, and returns a
// connection with it. LibTorch's store waits, too, but in pauses that soon are
// longer than the rest of the time. Throws std::runtime_error with the reason
// at `deadline`.
Descriptor find_listener(const WorldOptions& options,
                         Clock::time_point deadline) {
  std::string reason;
  do {
    try {
      const auto addresses =
          find_addresses(options.address, options.port, 0, SOCK_STREAM);
      for (const addrinfo* each = addresses.get(); each; each = each->ai_next) {
        Descriptor socket(
            ::socket(each->ai_family,
                     each->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        const int error = connect_socket(socket, *each);
        if (error == 0) return socket;
        reason = std::strerror(error);
      }
    } catch (const std::runtime_error& error) {
      reason = error.what();
    }
    std::this_thread::sleep_for(kKnock);
  } while (Clock::now() < deadline);
  throw std::runtime_error(reason);
}

// Returns LibTorch's store at the place in `options`: the server if `listening`
// is a socket (which it takes), or a client.
c10::intrusive_ptr<c10d::Store> tcp_store(const WorldOptions& options,
                                          int listening,
                                          Clock::time_point deadline) {
  // Closed when the store is connected: the server's log reports a connection
  // that is gone when it looks.
  Descriptor listener;
  if (listening < 0) listener = find_listener(options, deadline);
  c10d::TCPStoreOptions store;
  store.port = static_cast<uint16_t>(options.port);
  store.isServer = listening >= 0;
  store.waitWorkers = false;
  store.timeout = until(deadline);
  if (listening >= 0) store.masterListenFd = listening;
  return c10::make_intrusive<c10d::TCPStore>(options.address, store);
}

// The devices of the messages and of the heartbeats. Each has a thread: while a
// large message arrives, its thread does nothing else.
struct GlooDevices {
  GlooDevice data, control;
};

// One rank's part of a rendezvous. Calls that wait for other ranks run on a
// separate thread, which run() leaves behind after the deadline. LibTorch's
// store waits without a deadline for a server that does not answer.
class Joining : public std::enable_shared_from_this<Joining> {
 public:
  explicit Joining(const WorldOptions& options)
      : options_(options), deadline_(Clock::now() + options.timeout) {}

  Rendezvous run(Descriptor listening) {
    std::packaged_task<Outcome()> task(
        [self = shared_from_this(),
         listening = std::move(listening)]() mutable {
          Outcome outcome;
          try {
            outcome.meeting = self->join(listening.release());
          } catch (...) {
            outcome.error = std::current_exception();
            self->server_.reset();  // the caller may listen at its port again
          }
          return outcome;
        });
    auto answer = task.get_future();
    background_thread(std::move(task)).detach();
    // The inner thread has deadlines, too, and its errors say more.
    Clock::time_point limit = deadline_ + kGrace;
    if (answer.wait_until(limit) != std::future_status::ready && connected_) {
      limit += options_.timeout + kLinger;
    }
    if (answer.wait_until(limit) == std::future_status::ready) {
      auto [meeting, error] = answer.get();
      if (error) std::rethrow_exception(std::move(error));
      return meeting;
    }
    is_left_ = true;
    fail(Fault::kTimeout, 0, "no answer from the store at ", place(),
         "; is it rank 0 that listens there?");
  }

 private:
  // Moved to the waiting thread. If both threads held the exception, the last
  // one would free it; TSan would report that, since it does not see
  // libstdc++'s reference counts.
  struct Outcome {
    Rendezvous meeting;
    std::exception_ptr error;
  };

  std::string place() const {
    return c10::str(options_.address, ":", options_.port);
  }

  // The parts of `what` are put together.
  template <typename... Parts>
  RankFailure failure_of(Fault fault, int rank, const Parts&... what) const {
    return {fault, rank, options_.rank, "the rendezvous", c10::str(what...)};
  }

  [[noreturn]] void raise(const RankFailure& failure) const {
    throw_peer_error(failure, options_.rank);
  }

  template <typename... Parts>
  [[noreturn]] void fail(Fault fault, int rank, const Parts&... what) const {
    raise(failure_of(fault, rank, what...));
  }

  // Throws the same failure on all ranks: the first one that any rank has
  // found.
  template <typename... Parts>
  [[noreturn]] void fail_all(c10d::Store& store, Fault fault, int rank,
                             const Parts&... what) const {
    const std::string mine = encode_failure(failure_of(fault, rank, what...));
    raise(decode_failure(store.compareSet(kFailure, "", mine)));
  }

  // Throws the failure that a rank has found, if any.
  void check(c10d::Store& store) const {
    const std::string found = text_at(store, kFailure);
    if (!found.empty()) raise(decode_failure(found));
  }

  Rendezvous join(int listening) {
    Rendezvous meeting;
    meeting.store = connect(listening);
    meeting.listening = listening;
    connected_ = true;
    // After a failure, threads that still connect with other ranks keep the
    // store. The caller may listen at its port again.
    auto stop = c10::make_scope_exit([&] { stop_accepting(meeting); });
    try {
      const GlooDevices devices = own_devices(*meeting.store);
      wait_for_all(*meeting.store);
      if (server_) server_->set(kComplete, "yes");
      server_.reset();
      connect_groups(meeting, devices);
    } catch (const PeerError&) {
      // Keeps the store for a while, so that the other ranks find the reason.
      if (listening >= 0) std::this_thread::sleep_for(kLinger);
      throw;
    } catch (const c10::DistError& error) {
      fail(Fault::kDied, 0, "the store at ", place(),
           " is gone: ", reason_of(error));
    }
    stop.release();
    return meeting;
  }

  // Throws on all ranks if this rank cannot listen.
  GlooDevices own_devices(c10d::Store& store) const {
    if (options_.size == 1) return {};
    try {
      const std::string own =
          options_.own_address.empty()
              ? address_towards(options_.address, options_.port)
              : options_.own_address;
      return {gloo_device(own), gloo_device(own)};
    } catch (const std::exception& error) {
      fail_all(store, Fault::kFailed, options_.rank,
               "it cannot listen at its own address: ", reason_of(error),
               "; name an address of its machine in WorldOptions::own_address");
    }
  }

  void connect_groups(Rendezvous& meeting, const GlooDevices& devices) {
    const Clock::time_point deadline = Clock::now() + options_.timeout;
    const int rank = options_.rank, size = options_.size;
    const auto group = [&](const char* name, const GlooDevice& device,
                           const std::vector<int>& peers) {
      auto group = c10::make_intrusive<GlooGroup>(
          c10::make_intrusive<c10d::PrefixStore>(name, meeting.store), device,
          rank, size, options_.timeout);
      group->connect(peers);
      return group;
    };
    const auto neighbours = tree_neighbours(rank, size);
    const auto beaten = heartbeat_peers(rank, size);
    meeting.data = group("data", devices.data, neighbours);
    meeting.control = group("control", devices.control, beaten);
    exchange_bytes(*meeting.store, *meeting.data, neighbours, deadline);
    exchange_bytes(*meeting.store, *meeting.control, beaten, deadline);
    // The failure detector uses no other links.
    meeting.control->stop_connecting();
  }

  // Exchanges one byte with each of `peers`, which all do the same. So this
  // rank is connected with them when it leaves the rendezvous, while all are
  // alive. Throws on all ranks if one of them does not connect in time.
  void exchange_bytes(c10d::Store& store, GlooGroup& group,
                      const std::vector<int>& peers,
                      Clock::time_point deadline) const {
    std::vector<at::Tensor> out{at::zeros({1}, at::kByte)};
    std::vector<std::vector<at::Tensor>> in;
    std::vector<std::pair<int, c10::intrusive_ptr<c10d::Work>>> works;
    int peer = 0;
    try {
      for (const int each : peers) {
        peer = each;
        // A group of two may try for several times its timeout.
        group.wait_for(peer, deadline);
        in.push_back({at::empty({1}, at::kByte)});
        // The receive first: if the connection is closed, Gloo tells it, but
        // not a send in its queue.
        works.emplace_back(peer, group.recv(in.back(), peer, kFirstTag));
        works.emplace_back(peer, group.send(out, peer, kFirstTag));
      }
      for (const auto& [each, work] : works) {
        peer = each;
        work->wait(until(deadline));
      }
    } catch (const std::exception& error) {
      fail_all(store, Fault::kTimeout, peer, "rank ", options_.rank,
               " got no connection with it: ", reason_of(error),
               "; check that the machines reach each other at "
               "WorldOptions::own_address");
    }
  }

  c10::intrusive_ptr<c10d::Store> connect(int listening) {
    if (options_.size == 1) return c10::make_intrusive<c10d::HashStore>();
    while (true) {
      RankFailure failure;
      try {
        if (auto store = enter(listening, failure)) return store;
      } catch (const PeerError&) {
        throw;
      } catch (const std::exception& error) {
        failure =
            failure_of(Fault::kTimeout, 0, "no connection to the store at ",
                       place(), ": ", reason_of(error),
                       "; check MASTER_ADDR and MASTER_PORT, and that rank 0 "
                       "runs");
        if (listening >= 0) raise(failure);
      }
      // An attempt that has no time finds nothing but that.
      const bool is_found = failure.fault == Fault::kDisagree;
      if (Clock::now() + (is_found ? kAttempt : kLook) >= deadline_) {
        raise(failure);
      }
      std::this_thread::sleep_for(kLook);
    }
  }

  // Sets `server_`: the server if `listening` is a socket, or a client.
  void open_store(int listening) {
    server_ = tcp_store(options_, listening, deadline_);
    // So far it is the time that was left to connect, which may be 1 ms.
    server_->setTimeout(options_.timeout);
    // LibTorch's store may connect long after its timeout. The caller has then
    // been told of it, and may be in another rendezvous, whose place as this
    // rank must stay free.
    if (is_left_) {
      fail(Fault::kTimeout, 0, "the store at ", place(), " answered too late");
    }
  }

  // Returns the store of the world to join. Returns null and sets `failure` if
  // this server belongs to an earlier world.
  c10::intrusive_ptr<c10d::Store> enter(int listening, RankFailure& failure) {
    if (options_.store_is_served) return enter_served();
    open_store(listening);
    const int64_t world = server_->add(
        c10::str("gpipe/rank/", options_.session, "/", options_.rank), 1);
    if (world == 1) return store_of(world);
    // Rank 0 serves only one world. If that world is complete or has failed, it
    // may be the previous world of this process, which rank 0 has not left yet.
    const auto first = store_of(1);
    const std::string twice = twice_text();
    if (!server_->check({kComplete}) && !first->check({kFailure})) {
      fail_all(*first, Fault::kDisagree, options_.rank, twice);
    }
    failure = failure_of(Fault::kDisagree, options_.rank, twice);
    server_.reset();
    return nullptr;
  }

  // The same for a launcher's store, which may have served earlier worlds.
  c10::intrusive_ptr<c10d::Store> enter_served() {
    open_store(-1);
    // The client of an earlier attempt may be broken.
    starts_.emplace(c10::make_intrusive<c10d::PrefixStore>(
                        "gpipe/session/" + options_.session, server_),
                    options_.rank);
    const auto number = starts_->number(deadline_);
    if (!number) {
      fail(Fault::kTimeout, 0, "it has not come to ", place(), " in ",
           options_.timeout.count(),
           " ms; raise WorldOptions::timeout if it needs longer to start");
    }
    return store_of(*number);
  }

  c10::intrusive_ptr<c10d::Store> store_of(int64_t world) {
    return c10::make_intrusive<c10d::PrefixStore>(
        c10::str("gpipe/world/", options_.session, "/", world), server_);
  }

  std::string twice_text() const {
    return c10::str("there are two processes with rank ", options_.rank, " at ",
                    place(), "; give each a RANK of its own");
  }

  // Throws if a rank has another size of the world, or another backend.
  void compare_worlds(c10d::Store& store) {
    const std::string size = std::to_string(options_.size);
    if (const auto [theirs, first] = claim(store, kSize, size);
        theirs != size) {
      fail_all(store, Fault::kDisagree, first, "it says that there are ",
               theirs, " ranks, but rank ", options_.rank,
               " says that there are ", size, "; give all the same WORLD_SIZE");
    }
    if (const auto [theirs, first] = claim(store, kBackend, options_.backend);
        theirs != options_.backend) {
      fail_all(store, Fault::kDisagree, first, "its backend is '", theirs,
               "', but that of rank ", options_.rank, " is '", options_.backend,
               "'; give all the same WorldOptions::backend (GPIPE_BACKEND)");
    }
  }

  // Writes `mine` to `key`, unless a rank has done so before. Returns the value
  // there, and the rank that has written it.
  std::pair<std::string, int> claim(c10d::Store& store, const std::string& key,
                                    const std::string& mine) const {
    const std::string first =
        store.compareSet(key, "", c10::str(mine, " ", options_.rank));
    const std::size_t space = first.find(' ');
    return {first.substr(0, space), std::stoi(first.substr(space + 1))};
  }

  // A rank asks the store for two keys at a time, whatever the size.
  void wait_for_all(c10d::Store& store) {
    const int size = options_.size;
    check(store);
    compare_worlds(store);
    if (store.add(rank_key(options_.rank), 1) > 1) {
      fail_all(store, Fault::kDisagree, options_.rank, twice_text());
    }
    if (store.add(kCount, 1) == size) store.set(kAll, "yes");
    while (!store.check({kAll})) {
      if (starts_) starts_->answer([&] { check(store); });
      check(store);
      if (Clock::now() >= deadline_) report_missing(store);
      std::this_thread::sleep_for(
          std::max<Clock::duration>(kLook, size * kLookPerRank));
    }
  }

  [[noreturn]] void report_missing(c10d::Store& store) {
    const int size = options_.size;
    std::vector<int> missing;
    for (int rank = 0; rank < size; ++rank) {
      if (!store.check({rank_key(rank)})) missing.push_back(rank);
    }
    // The last rank may have come just now.
    const int first = missing.empty() ? options_.rank : missing.front();
    fail_all(store, Fault::kTimeout, first,
             size - static_cast<int>(missing.size()), " of ", size,
             " ranks came to ", place(), " in ", options_.timeout.count(),
             " ms; missing: ", c10::Join(", ", missing),
             "; raise WorldOptions::timeout if they need longer to start");
  }

  const WorldOptions options_;
  const Clock::time_point deadline_;
  // Used by the inner thread only.
  c10::intrusive_ptr<c10d::Store> server_;
  std::optional<Starts> starts_;  // if a launcher serves the store
  std::atomic<bool> connected_{false};
  std::atomic<bool> is_left_{false};  // by run()
};

}  // namespace

Rendezvous meet(const WorldOptions& options) {
  TORCH_CHECK_VALUE(
      options.size >= 1 && options.rank >= 0 && options.rank < options.size,
      "rank ", options.rank, " is not one of ", options.size,
      " ranks: ranks count from 0");
  TORCH_CHECK_VALUE(options.local_rank >= 0, "local_rank is ",
                    options.local_rank,
                    ": the ranks of a machine count from 0");
  parse_backends(options.backend);  // throws if there is no such backend
  TORCH_CHECK_VALUE(options.port > 0 && options.port < 65536,
                    "the port must be in 1..65535 (port: ", options.port, ")");
  TORCH_CHECK_VALUE(
      options.timeout.count() > 0 && options.heartbeat_timeout.count() > 0,
      "timeouts must be positive (timeout: ", options.timeout.count(),
      " ms, heartbeat_timeout: ", options.heartbeat_timeout.count(), " ms)");
  Descriptor listening;
  if (options.rank == 0 && options.size > 1 && !options.store_is_served) {
    try {
      listening = listen_on(options.address, options.port);
    } catch (const std::runtime_error& error) {
      C10_THROW_ERROR(DistNetworkError,
                      std::string("rank 0: ") + error.what() +
                          "; give a free port (MASTER_PORT), and an address of "
                          "rank 0's machine (MASTER_ADDR); if this process "
                          "has an earlier World, destroy that and its "
                          "pipelines first");
    }
  }
  return std::make_shared<Joining>(options)->run(std::move(listening));
}

void stop_accepting(const Rendezvous& meeting) {
  if (meeting.listening < 0) return;
  // LibTorch's store cannot stop, and its thread uses the descriptor. So an
  // event that never comes gets the number, which closes the socket.
  const Descriptor never(::eventfd(0, EFD_CLOEXEC));
  if (never.get() >= 0) ::dup3(never.get(), meeting.listening, O_CLOEXEC);
}

}  // namespace gpipe::internal
