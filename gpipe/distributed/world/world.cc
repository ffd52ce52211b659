#include "gpipe/distributed/world/world.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "gpipe/distributed/world/failure_conversion.h"
#include "gpipe/distributed/world/failure_detector.h"
#include "gpipe/distributed/world/rendezvous.h"
#include "gpipe/runtime/device/origin.h"
#include "gpipe/threads/background_thread.h"
#include "gpipe/threads/exit_gate.h"

namespace gpipe {
namespace {

// Ignores SIGPIPE, unless it has a handler. A write to a connection that a peer
// has just closed would end this process by SIGPIPE, instead of causing an
// error.
void ignore_broken_pipes() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 &&
      (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL) {
    ::signal(SIGPIPE, SIG_IGN);
  }
}

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How long to wait after a connection is closed for the failure detector to
// learn the reason, which the closed connection does not tell.
constexpr milliseconds kVerdict{1000};
// How long to wait for reports of a failure to be sent.
constexpr milliseconds kLastWords{100};
// How long to wait for other ranks that leave at the same time, before the
// connections are closed. Ranks that leave later find that this one has left.
constexpr milliseconds kPatience{1000};
// 24 days, the maximum of poll(), which takes milliseconds as an int. The
// largest possible number of milliseconds would overflow to a deadline in the
// past.
constexpr milliseconds kForever{std::numeric_limits<int>::max()};

WorldOptions with_an_end(WorldOptions options) {
  options.timeout = std::min(options.timeout, kForever);
  options.heartbeat_timeout = std::min(options.heartbeat_timeout, kForever);
  return options;
}

}  // namespace

class World::Impl {
 public:
  using Action = World::Action;

  explicit Impl(const WorldOptions& options)
      : options_(with_an_end(options)), meeting_(internal::meet(options_)) {
    detector_ = std::make_unique<internal::FailureDetector>(
        meeting_.control, options_.rank, options_.size,
        options_.heartbeat_timeout,
        [this](RankFailure failure) { fail(std::move(failure)); });
    announcer_ = detector_.get();
  }

  ~Impl() {
    // An exception unwinds the stack, wherever it was thrown. Report it, so
    // that the other ranks need not wait for a timeout.
    if (std::uncaught_exceptions() > exceptions_) {
      fail({Fault::kFailed, options_.rank, options_.rank, "",
            "an exception outside of the pipeline has ended it"});
    }
    if (failure()) {
      std::this_thread::sleep_for(kLastWords);
    } else {
      detector_->leave(std::min(kPatience, options_.timeout));
    }
    detector_.reset();
    if (aborter_.joinable()) aborter_.join();
  }

  bool forked() const { return origin_.forked(); }
  // Returns whether a thread waits for a message.
  bool is_in_use() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return !waiting_.empty();
  }
  const WorldOptions& options() const { return options_; }
  const internal::Rendezvous& meeting() const { return meeting_; }

  std::optional<RankFailure> failure() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }

  void check() const {
    TORCH_CHECK(!forked(),
                "a World cannot be used in a fork of the process that made it: "
                "its connections belong to the parent; start a program (exec, "
                "posix_spawn) instead of using fork() alone");
    if (!failed_) return;
    internal::throw_peer_error(*failure(), options_.rank);
  }

  void fail(RankFailure failure) {
    if (forked()) return;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (failure_) return;
      if (failure.reporter == options_.rank && failure.action.empty()) {
        failure.action = waiting_for(failure.rank);
      }
      failure_ = failure;
      failed_ = true;
    }
    changed_.notify_all();
    meeting_.data->stop_connecting();
    // Each rank that learns of the failure tells all others once. So it also
    // reaches ranks whose own connection to the failed rank still works.
    if (internal::FailureDetector* const detector = announcer_)
      detector->announce(failure);
    // After the announcement and on another thread: the abort of a direct
    // transfer may return only when the other end aborts, too.
    aborter_ = internal::background_thread([this] { abort_all(); });
  }

  c10::intrusive_ptr<c10d::Work> post(
      int peer, const Action& action,
      const std::function<c10::intrusive_ptr<c10d::Work>()>& post) {
    check();
    std::string error;
    try {
      return post();
    } catch (const std::exception& thrown) {
      error = internal::reason_of(thrown);
    }
    connection_broke(peer, action, error);
    return nullptr;
  }

  void wait(c10d::Work& work, int peer, const Action& action) {
    bool is_late = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      waiting_[&work] = {peer, &action};
      is_late = collected_;  // otherwise abort_all() will find it
    }
    if (is_late) abort(work);
    const auto begin = Clock::now();
    std::string error;
    bool done = false;
    try {
      const internal::WaitScope waiting;
      done = work.wait(options_.timeout);
    } catch (const std::exception& thrown) {
      error = internal::reason_of(thrown);
    }
    const bool late = Clock::now() - begin >= options_.timeout;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      waiting_.erase(&work);
    }
    if (done) return;
    if (!late) {
      connection_broke(peer, action, error);
      return;
    }
    std::string what =
        "nothing came for " + std::to_string(options_.timeout.count()) + " ms";
    const int at_fault = detector_->end_of_waiting(peer);
    if (at_fault != peer) {
      what += " from rank " + std::to_string(peer) + ", which waits for rank " +
              std::to_string(at_fault);
    }
    what += "; raise WorldOptions::timeout if that may take longer";
    fail({Fault::kTimeout, at_fault, options_.rank, action(), what});
    check();
  }

  int on_failure(std::function<void()> callback) {
    std::lock_guard<std::mutex> lock(callback_mutex_);
    const int number = next_callback_++;
    if (failed_) {
      callback();
    } else {
      callbacks_.emplace(number, std::move(callback));
    }
    return number;
  }

  void forget(int callback) {
    std::lock_guard<std::mutex> lock(callback_mutex_);
    callbacks_.erase(callback);
  }

  int next_channel() { return next_channel_++; }

  internal::FailureDetector& detector() { return *detector_; }

 private:
  // What is left of a failed transfer is not used, so its errors do not count.
  static void abort(c10d::Work& work) {
    try {
      work.abort();
    } catch (const std::exception&) {
    }
  }

  // Ends all waiting threads.
  void abort_all() {
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      collected_ = true;
      for (const auto& [work, waiting] : waiting_) {
        works.push_back(c10::intrusive_ptr<c10d::Work>::reclaim_copy(work));
      }
    }
    for (const auto& work : works) abort(*work);
    std::lock_guard<std::mutex> lock(callback_mutex_);
    for (const auto& [number, callback] : callbacks_) {
      try {
        callback();
      } catch (const std::exception&) {
        // The others must be called, too.
      }
    }
  }

  struct Waiting {
    int peer = 0;
    const Action* action = nullptr;  // of the waiting thread
  };

  // Throws the failure that the failure detector reports within kVerdict; if it
  // reports none, one with the text `error`.
  void connection_broke(int peer, const Action& action,
                        const std::string& error) {
    {
      const internal::WaitScope waiting;
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait_for(lock, kVerdict, [this] { return failed_.load(); });
    }
    fail({detector_->has_left(peer) ? Fault::kLeft : Fault::kDied, peer,
          options_.rank, action(), error});
    check();
  }

  // Returns what this rank waits for from `rank`, or "". Call it with the
  // mutex.
  std::string waiting_for(int rank) const {
    for (const auto& [work, waiting] : waiting_) {
      if (waiting.peer == rank) return (*waiting.action)();
    }
    return "";
  }

  const internal::Origin origin_;
  const WorldOptions options_;
  const int exceptions_ = std::uncaught_exceptions();
  const internal::Rendezvous meeting_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> failed_{false};
  std::optional<RankFailure> failure_;
  std::map<c10d::Work*, Waiting> waiting_;
  bool collected_ = false;  // abort_all() has taken `waiting_`

  std::mutex callback_mutex_;  // held while callbacks run
  std::map<int, std::function<void()>> callbacks_;
  int next_callback_ = 0;

  std::atomic<int> next_channel_{1};  // 0: all_gather() of programs
  std::unique_ptr<internal::FailureDetector> detector_;
  // `detector_`, or null while it is constructed: its threads may report
  // failures before.
  std::atomic<internal::FailureDetector*> announcer_{nullptr};
  std::thread aborter_;  // after a failure
};

World::World(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
World::~World() {
  // In a fork of the process, the connections belong to the parent, and there
  // are no threads to join.
  // If a thread waits for a message, exit() on another thread destroys a static
  // World. The waiting thread still uses the connections.
  if (impl_->forked() || impl_->is_in_use()) impl_.release();
}

std::shared_ptr<World> World::connect(const WorldOptions& options) {
  ignore_broken_pipes();
  return std::shared_ptr<World>(new World(std::make_unique<Impl>(options)));
}

int World::rank() const { return impl_->options().rank; }
int World::size() const { return impl_->options().size; }
int World::local_rank() const { return impl_->options().local_rank; }
milliseconds World::timeout() const { return impl_->options().timeout; }
std::string World::backend() const { return impl_->options().backend; }
std::optional<RankFailure> World::failure() const { return impl_->failure(); }
void World::check() const { impl_->check(); }
c10d::Backend& World::group() { return *impl_->meeting().data; }
c10d::Store& World::store() { return *impl_->meeting().store; }
void World::reach(const std::vector<int>& peers, int tag) {
  const Action action = [] { return "connecting"; };
  impl_->meeting().data->connect(peers);
  const at::Tensor out = at::zeros({1}, at::kByte);
  std::vector<at::Tensor> in;
  std::vector<std::pair<int, c10::intrusive_ptr<c10d::Work>>> works;
  for (const int peer : peers) {
    in.push_back(at::empty({1}, at::kByte));
    works.emplace_back(peer, send(out, peer, tag, action));
    works.emplace_back(peer, receive(in.back(), peer, tag, action));
  }
  for (const auto& [peer, work] : works) wait(*work, peer, action);
}
c10::intrusive_ptr<c10d::Work> World::begin(
    int peer, const Action& action,
    const std::function<c10::intrusive_ptr<c10d::Work>()>& post) {
  return impl_->post(peer, action, post);
}
c10::intrusive_ptr<c10d::Work> World::send(const at::Tensor& bytes, int to,
                                           int tag, const Action& action) {
  return begin(to, action, [&] {
    std::vector<at::Tensor> list{bytes};
    return group().send(list, to, tag);
  });
}
c10::intrusive_ptr<c10d::Work> World::receive(const at::Tensor& bytes, int from,
                                              int tag, const Action& action) {
  return begin(from, action, [&] {
    std::vector<at::Tensor> list{bytes};
    return group().recv(list, from, tag);
  });
}
void World::wait(c10d::Work& work, int peer, const Action& action) {
  impl_->wait(work, peer, action);
}
void World::set_waits_for(int peer) { impl_->detector().set_waits_for(peer); }
World::WaitsFor::WaitsFor(World& world, int peer)
    : world_(world),
      peer_(peer),
      before_(world.impl_->detector().set_waits_for(peer)) {}
World::WaitsFor::~WaitsFor() {
  world_.impl_->detector().set_waits_for(peer_, before_);
}
void World::fail(RankFailure failure) { impl_->fail(std::move(failure)); }
int World::on_failure(std::function<void()> callback) {
  return impl_->on_failure(std::move(callback));
}
void World::forget(int callback) { impl_->forget(callback); }
int World::next_channel() { return impl_->next_channel(); }

}  // namespace gpipe
