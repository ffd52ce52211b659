#include "gpipe/distributed/world/communicator.h"

#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include <signal.h>

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>
#include <system_error>
#include <utility>

#include "gpipe/base/crc32c.h"
#include "gpipe/base/threads.h"
#include "gpipe/distributed/world/backends.h"
#include "gpipe/distributed/world/bytes.h"

namespace gpipe::internal {
namespace {

// The number of bits that name the channel; the bits above depend on the
// content.
constexpr int kTagBits = 15, kContentBits = 16;

}  // namespace

int Tags::payload_of(int64_t bytes, at::ScalarType type) const {
  // Channels from 2^13 on have higher bits, too.
  const int64_t content[] = {bytes, static_cast<int64_t>(type),
                             payload >> kTagBits};
  const uint32_t crc = crc32c(content, sizeof content);
  const int folded = static_cast<int>((crc ^ (crc >> 16)) &
                                      ((uint32_t{1} << kContentBits) - 1));
  return (folded << kTagBits) | (payload & ((1 << kTagBits) - 1));
}

namespace {

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

WorldOptions completed(WorldOptions options) {
  if (options.backend.empty()) options.backend = all_backends();
  options.timeout = std::min(options.timeout, kForever);
  options.heartbeat_timeout = std::min(options.heartbeat_timeout, kForever);
  return options;
}

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

// Returns whether the text is that of a connection which Gloo has not made in
// time, or has closed at the timeout of a wait. Gloo does so too if the message
// arrives just then and the wait ends well; then the next call finds it.
bool is_timeout(const std::string& error) {
  return error.find("Timed out waiting") != std::string::npos ||
         error.find("Application timeout") != std::string::npos ||
         error.find("Connect timeout") != std::string::npos;
}

// Returns whether a transfer fails by this rank itself: by its device, by its
// memory, or by a thread that cannot start. An error of a connection is a
// c10::DistError, as that of NCCL and of a store, or no c10::Error, as that of
// Gloo.
bool is_own(const std::exception& error) {
  if (dynamic_cast<const c10::Error*>(&error)) {
    return !dynamic_cast<const c10::DistError*>(&error);
  }
  return dynamic_cast<const std::system_error*>(&error) ||
         dynamic_cast<const std::bad_alloc*>(&error);
}

// What to do about a timeout.
constexpr char kRaise[] =
    "; raise WorldOptions::timeout if that may take longer";

// Aborts `work`. What is left of a failed transfer is not used, so its errors
// do not count.
void abort(c10d::Work& work) {
  try {
    work.abort();
  } catch (const std::exception&) {
  }
}

}  // namespace

std::shared_ptr<Communicator> Communicator::connect(
    const WorldOptions& options) {
  ignore_broken_pipes();
  return std::shared_ptr<Communicator>(new Communicator(options),
                                       [](Communicator* communicator) {
                                         if (!communicator->must_stay())
                                           delete communicator;
                                       });
}

Communicator::Communicator(const WorldOptions& options)
    : options_(completed(options)), meeting_(meet(options_)) {
  try {
    detector_ = std::make_unique<FailureDetector>(
        meeting_.control, options_.rank, options_.size,
        options_.heartbeat_timeout,
        [this](RankFailure failure) { fail(std::move(failure)); });
  } catch (...) {
    // Its first threads may have called fail() before a later one could not
    // start.
    if (aborter_.joinable()) aborter_.join();
    throw;
  }
  announcer_ = detector_.get();
  // Its threads may have called fail() before it could announce.
  if (const auto early = failure()) detector_->announce(*early);
}

bool Communicator::must_stay() const {
  if (origin_.forked()) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  return !waiting_.empty();
}

Communicator::~Communicator() {
  // An exception unwinds the stack, wherever it was thrown. Report it, so that
  // the other ranks need not wait for a timeout.
  if (std::uncaught_exceptions() > exceptions_) {
    fail({Fault::kFailed, rank(), rank(), "",
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

std::vector<int> Communicator::all_ranks() const {
  std::vector<int> ranks(size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::optional<RankFailure> Communicator::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void Communicator::check() const {
  TORCH_CHECK(!origin_.forked(),
              "a World cannot be used in a fork of the process that made it: "
              "its connections belong to the parent; start a program (exec, "
              "posix_spawn) instead of using fork() alone");
  if (failed_) throw_peer_error(*failure(), rank());
}

void Communicator::connect_to(const std::vector<int>& peers) {
  meeting_.data->connect(peers);
  for (const int peer : peers) {
    begin(
        peer, [] { return "connecting"; },
        [&]() -> Work {
          meeting_.data->wait_for(peer);
          return {};
        });
  }
}

Communicator::Work Communicator::send(const at::Tensor& bytes, int to, int tag,
                                      const Action& action) {
  return begin(to, action, [&] {
    std::vector<at::Tensor> list{bytes};
    return meeting_.data->send(list, to, tag);
  });
}

Communicator::Work Communicator::receive(const at::Tensor& bytes, int from,
                                         int tag, const Action& action) {
  return begin(from, action, [&] {
    std::vector<at::Tensor> list{bytes};
    return meeting_.data->recv(list, from, tag);
  });
}

Communicator::Work Communicator::begin(int peer, const Action& action,
                                       const std::function<Work()>& post) {
  check();
  std::string error;
  try {
    return post();
  } catch (const std::exception& thrown) {
    if (!failed_ && is_own(thrown)) throw;
    error = reason_of(thrown);
  }
  connection_broke(peer, action, error);
  return nullptr;
}

void Communicator::wait(const Work& work, int peer, const Action& action) {
  if (!work) return;
  bool is_late = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_[work.get()] = {work, peer, &action};
    is_late = collected_;  // otherwise abort_all() will find it
  }
  if (is_late) abort(*work);
  const auto begin = Clock::now();
  std::string error;
  bool done = false;
  try {
    const auto forget = c10::make_scope_exit([&] {
      std::lock_guard<std::mutex> lock(mutex_);
      waiting_.erase(work.get());
    });
    const WaitScope waiting;
    done = work->wait(options_.timeout);
  } catch (const std::exception& thrown) {
    if (!failed_ && is_own(thrown)) throw;
    error = reason_of(thrown);
  }
  const bool late = Clock::now() - begin >= options_.timeout;
  if (done) return;
  if (!late) return connection_broke(peer, action, error);
  std::string what =
      c10::str("nothing came for ", options_.timeout.count(), " ms");
  const int at_fault = waits().end_of_chain(peer);
  if (at_fault != peer) {
    what += c10::str(" from rank ", peer, ", which waits for rank ", at_fault);
  }
  what += kRaise;
  fail({Fault::kTimeout, at_fault, rank(), action(), what});
  check();
}

void Communicator::connection_broke(int peer, const Action& action,
                                    const std::string& error) {
  {
    const WaitScope waiting;
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kVerdict, [this] { return failed_.load(); });
  }
  const Fault fault = is_timeout(error)           ? Fault::kTimeout
                      : detector_->has_left(peer) ? Fault::kLeft
                                                  : Fault::kDied;
  fail({fault, peer, rank(), action(),
        error + (fault == Fault::kTimeout ? kRaise : "")});
  check();
}

std::string Communicator::waiting_for(int rank) const {
  for (const auto& [work, waiting] : waiting_) {
    if (waiting.peer == rank) return (*waiting.action)();
  }
  return "";
}

void Communicator::fail(RankFailure failure) {
  if (origin_.forked()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) return;
    if (failure.reporter == rank() && failure.action.empty()) {
      failure.action = waiting_for(failure.rank);
    }
    failure_ = failure;
    // Before `failed_`: a caller that gets the PeerError may listen at the port
    // at once.
    stop_accepting(meeting_);
    failed_ = true;
  }
  changed_.notify_all();
  meeting_.data->stop_connecting();
  // Each rank that learns of the failure tells all others once. So it also
  // reaches ranks whose own connection to the failed rank still works.
  if (FailureDetector* const detector = announcer_) detector->announce(failure);
  // After the announcement and on another thread: the abort of a direct
  // transfer may return only when the other end aborts, too.
  try {
    aborter_ = background_thread([this] { abort_all(); });
  } catch (const std::system_error&) {
    abort_all();  // no thread can start
  }
}

void Communicator::fail(const std::exception_ptr& exception,
                        const std::string& action) {
  if (failed_) return;
  fail({Fault::kFailed, rank(), rank(), action, cause_of(exception)});
}

void Communicator::abort_all() {
  std::vector<Work> works;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    collected_ = true;
    for (const auto& each : waiting_) works.push_back(each.second.work);
  }
  for (const Work& work : works) abort(*work);
  std::lock_guard<std::mutex> lock(callback_mutex_);
  for (const auto& [number, callback] : callbacks_) {
    try {
      callback();
    } catch (const std::exception&) {
      // The others must be called, too.
    }
  }
}

int Communicator::on_failure(std::function<void()> callback) {
  std::lock_guard<std::mutex> lock(callback_mutex_);
  const int number = next_callback_++;
  if (failed_) {
    callback();
  } else {
    callbacks_.emplace(number, std::move(callback));
  }
  return number;
}

void Communicator::forget(int callback) {
  std::lock_guard<std::mutex> lock(callback_mutex_);
  callbacks_.erase(callback);
}

}  // namespace gpipe::internal
