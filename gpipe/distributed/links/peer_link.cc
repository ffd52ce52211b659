#include "gpipe/distributed/links/peer_link.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "gpipe/distributed/links/link_error.h"
#include "gpipe/distributed/links/shared_memory.h"

namespace gpipe::internal {
namespace {

using Clock = std::chrono::steady_clock;
using Status = Socket::Status;

// Messages of at least this size go through shared memory, in pieces. A ring
// holds several, so that both ends copy at the same time.
constexpr std::size_t kShareFrom = 4 << 10;
constexpr std::size_t kPiece = SharedMemory::kRing / 4;
// What the mesh's thread handles before it looks at other connections.
constexpr std::size_t kAtOnce = 4 << 20;

}  // namespace

bool Transfer::wait(std::optional<std::chrono::milliseconds> timeout) {
  constexpr auto kNever = Clock::time_point::max();
  std::unique_lock<std::mutex> lock(link_->mutex_);
  const auto is_over = [this] { return state_ != State::kGoing; };
  const auto end = timeout ? Clock::now() + *timeout : kNever;
  while (!is_over()) {
    const auto limit = link_->socket_ ? end : std::min(end, link_->deadline_);
    if (limit == kNever) {
      changed_.wait(lock, is_over);
    } else if (!changed_.wait_until(lock, limit, is_over)) {
      if (!link_->socket_ && Clock::now() >= link_->deadline_) {
        link_->fail(link_->missing_());
      } else if (Clock::now() >= end) {
        throw LinkError(LinkError::Cause::kNetwork,
                        "timed out after " + std::to_string(timeout->count()) +
                            " ms, waiting for " + link_->peer());
      }
    }
  }
  if (state_ == State::kFailed) {
    throw LinkError(LinkError::Cause::kNetwork, link_->broken_);
  }
  return state_ == State::kDone;
}

void Transfer::abort() {
  std::lock_guard<std::mutex> lock(link_->mutex_);
  link_->abort(*this);
}

bool Transfer::is_over() const {
  std::lock_guard<std::mutex> lock(link_->mutex_);
  return state_ != State::kGoing;
}

PeerLink::PeerLink(int epoll, TimePoint deadline,
                   std::function<std::string()> missing)
    : epoll_(epoll), deadline_(deadline), missing_(std::move(missing)) {}

PeerLink::~PeerLink() = default;

std::string PeerLink::attach(Socket& socket) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (socket_) return "this rank is connected already";
  if (!broken_.empty()) return "the wait for this rank has ended: " + broken_;
  socket_.emplace(std::move(socket));
  // The event of writing comes at once. It sends what has been queued, and
  // reads what the greeting has read and not used, which causes no event.
  is_armed_ = true;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT;
  event.data.ptr = this;
  ::epoll_ctl(epoll_, EPOLL_CTL_ADD, socket_->fd(), &event);
  return "";
}

std::string PeerLink::peer() const {
  return socket_ ? socket_->peer() : "a rank that has not connected";
}

PeerLink::TransferPtr PeerLink::start(bool is_send, void* data,
                                      std::size_t bytes,
                                      std::shared_ptr<const void> owner) {
  if (!broken_.empty()) throw LinkError(LinkError::Cause::kNetwork, broken_);
  auto transfer = std::make_shared<Transfer>();
  transfer->link_ = shared_from_this();
  transfer->owner_ = std::move(owner);
  transfer->data_ = static_cast<char*>(data);
  transfer->bytes_ = bytes;
  transfer->is_send_ = is_send;
  return transfer;
}

PeerLink::TransferPtr PeerLink::send(int tag, const void* data,
                                     std::size_t bytes,
                                     std::shared_ptr<const void> owner) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto transfer = start(true, const_cast<void*>(data), bytes, std::move(owner));
  waiting_[tag].push_back(transfer);
  match(tag);
  advance();
  return transfer;
}

PeerLink::TransferPtr PeerLink::receive(int tag, void* data, std::size_t bytes,
                                        std::shared_ptr<const void> owner) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto transfer = start(false, data, bytes, std::move(owner));
  receives_[tag].push_back(transfer);
  notices_.push_back({Frame::kReady, tag, bytes});
  flush();
  return transfer;
}

void PeerLink::hold() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++holds_;
}

void PeerLink::release() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (--holds_ == 0) advance();
}

void PeerLink::match(int tag) {
  const auto waiting = waiting_.find(tag);
  const auto ready = ready_.find(tag);
  if (waiting == waiting_.end() || ready == ready_.end()) return;
  while (!waiting->second.empty() && !ready->second.empty()) {
    TransferPtr transfer = std::move(waiting->second.front());
    waiting->second.pop_front();
    if (ready->second.front() != transfer->bytes_) {
      waiting->second.push_front(std::move(transfer));
      fail("a message of " + std::to_string(waiting->second.front()->bytes_) +
           " bytes is sent to " + peer() + ", which expects " +
           std::to_string(ready->second.front()));
      return;
    }
    ready->second.pop_front();
    outgoing_.push_back({tag, std::move(transfer)});
  }
  if (waiting->second.empty()) waiting_.erase(waiting);
  if (ready->second.empty()) ready_.erase(ready);
}

void PeerLink::put(const Frame& frame) {
  std::memcpy(record_.data() + record_size_, &frame, sizeof frame);
  record_size_ += sizeof frame;
}

// Fills the record with whole frames.
void PeerLink::fill_record() {
  while (record_size_ + sizeof(Frame) < kRecord) {
    if (std::exchange(must_wake_, false)) {
      put({Frame::kLook});
      continue;
    }
    if (!notices_.empty()) {
      put(notices_.front());
      notices_.pop_front();
      continue;
    }
    if (outgoing_.empty()) return;
    Transfer& transfer = *outgoing_.front().transfer;
    if (transfer.bytes_ < kShareFrom || !shared()) {
      put_data();
    } else if (!put_shared()) {
      return;
    }
    if (transfer.done_ < transfer.bytes_) continue;
    // The rest is a copy in the record, or in the shared memory.
    finish(transfer, Transfer::State::kDone);
    outgoing_.pop_front();
  }
}

void PeerLink::put_data() {
  const Outgoing& next = outgoing_.front();
  Transfer& transfer = *next.transfer;
  const std::size_t bytes =
      std::min(next.left(), kRecord - record_size_ - sizeof(Frame));
  put({Frame::kData, next.tag, bytes});
  if (bytes > 0) {
    std::memcpy(record_.data() + record_size_, transfer.data_ + transfer.done_,
                bytes);
  }
  record_size_ += bytes;
  transfer.done_ += bytes;
}

// Returns whether more may follow in this record.
bool PeerLink::put_shared() {
  const Outgoing& next = outgoing_.front();
  Transfer& transfer = *next.transfer;
  const std::size_t space = SharedMemory::kRing - (written_ - freed_);
  const std::size_t bytes = std::min({next.left(), space, kPiece});
  if (bytes == 0) return false;  // a frame of kTaken comes
  shared()->write(written_, transfer.data_ + transfer.done_, bytes);
  put({Frame::kShared, next.tag, bytes});
  written_ += bytes;
  transfer.done_ += bytes;
  // The other end can copy this piece while this one copies the next.
  return next.left() == 0;
}

// Writes until nothing is left, or the socket is full, or kInline is reached.
void PeerLink::flush() {
  if (holds_ > 0) return;
  std::size_t total = 0;
  try {
    post_notices();
    while (socket_ && broken_.empty()) {
      if (record_size_ == 0) fill_record();
      if (record_size_ == 0) return arm(false);
      if (total >= kInline) return arm(true);
      std::size_t done = 0;
      const Status status = socket_->write(record_.data(), record_size_, done);
      // A key update of the other end may need a read first; epoll tells then.
      if (status != Status::kDone) return arm(status == Status::kNeedsWrite);
      total += done;
      record_size_ -= done;
      if (record_size_ > 0) {
        std::memmove(record_.data(), record_.data() + done, record_size_);
      }
    }
  } catch (const LinkError& error) {
    fail(error.what());
  }
}

// Sends what can be sent. If something is left that needs a notice of the other
// end, that will wake this one.
void PeerLink::advance() {
  if (holds_ > 0) return;
  look();
  flush();
  SharedMemory* const memory = shared();
  if (!memory) return;
  while (is_stuck()) {
    memory->request(true);
    if (!look()) return;
    flush();
  }
  memory->request(false);
}

bool PeerLink::is_stuck() const {
  return broken_.empty() && (!waiting_.empty() || !outgoing_.empty());
}

// Handles the notices in the shared memory. Returns whether there was one.
bool PeerLink::look() {
  SharedMemory* const memory = shared();
  bool is_any = false;
  Frame notice;
  while (memory && broken_.empty() && memory->take(notice)) {
    is_any = true;
    if (notice.kind == Frame::kReady || notice.kind == Frame::kTaken) {
      handle(notice);
    } else {
      fail("a notice of kind " + std::to_string(notice.kind) + " from " +
           peer());
    }
  }
  return is_any;
}

// Puts the notices into the shared memory, as long as there is room. Then all
// later ones go through the socket, in their order: the other end looks there
// before it handles a frame.
void PeerLink::post_notices() {
  SharedMemory* const memory = shared();
  while (memory && !is_box_full_ && !notices_.empty()) {
    is_box_full_ = !memory->put(notices_.front());
    if (is_box_full_) return;
    notices_.pop_front();
    if (memory->take_request()) must_wake_ = true;
  }
}

void PeerLink::arm(bool for_write) {
  if (for_write == is_armed_) return;
  is_armed_ = for_write;
  epoll_event event{};
  event.events = EPOLLIN | (for_write ? uint32_t{EPOLLOUT} : 0u);
  event.data.ptr = this;
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, socket_->fd(), &event);
}

bool PeerLink::on_events() {
  std::size_t total = 0;
  while (true) {
    // Released between records, so that senders do not wait long.
    std::lock_guard<std::mutex> lock(mutex_);
    if (!broken_.empty()) return false;
    bool is_more = false;
    try {
      is_more = read_some();
    } catch (const LinkError& error) {
      fail(error.what());
    }
    advance();
    if (!is_more) return false;
    total += kRecord;
    if (total >= kAtOnce) return true;
  }
}

void PeerLink::finish(Transfer& transfer, Transfer::State state) {
  if (transfer.state_ != Transfer::State::kGoing) return;
  transfer.state_ = state;
  transfer.owner_.reset();
  transfer.changed_.notify_all();
}

void PeerLink::abort(Transfer& transfer) {
  if (transfer.state_ != Transfer::State::kGoing) return;
  finish(transfer, Transfer::State::kAborted);
  if (!transfer.is_send_) return;  // its data is thrown away when it comes
  if (transfer.done_ > 0) return fail("a message was aborted in the middle");
  const auto is_it = [&](const TransferPtr& each) {
    return each.get() == &transfer;
  };
  for (auto& [tag, list] : waiting_) std::erase_if(list, is_it);
  for (const Outgoing& each : outgoing_) {
    // The receiver waits for it.
    if (is_it(each.transfer)) return fail("a message was aborted");
  }
}

void PeerLink::close(const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  fail(reason);
}

void PeerLink::fail(const std::string& reason) {
  if (!broken_.empty()) return;
  broken_ = reason;
  if (socket_) {
    ::epoll_ctl(epoll_, EPOLL_CTL_DEL, socket_->fd(), nullptr);
    socket_->shut_down();
  }
  for (const Outgoing& each : outgoing_) {
    finish(*each.transfer, Transfer::State::kFailed);
  }
  for (auto* const lists : {&waiting_, &receives_}) {
    for (auto& [tag, list] : *lists) {
      for (const TransferPtr& each : list) {
        finish(*each, Transfer::State::kFailed);
      }
    }
    lists->clear();
  }
  outgoing_.clear();
  in_left_ = 0;
}

}  // namespace gpipe::internal
