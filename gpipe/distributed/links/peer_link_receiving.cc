// What a link does with the frames that arrive.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "gpipe/distributed/links/peer_link.h"
#include "gpipe/distributed/links/shared_memory.h"

namespace gpipe::internal {

using Status = Socket::Status;

// Reads one header or one piece of data. Returns false if nothing is there.
bool PeerLink::read_some() {
  return in_left_ == 0 ? read_header() : read_data();
}

bool PeerLink::read_header() {
  std::size_t done = 0;
  auto* const bytes = reinterpret_cast<char*>(&in_);
  if (socket_->read(bytes + in_header_, sizeof in_ - in_header_, done) !=
      Status::kDone) {
    return false;
  }
  in_header_ += done;
  if (in_header_ == sizeof in_) {
    in_header_ = 0;
    handle(in_);
  }
  return broken_.empty();
}

bool PeerLink::read_data() {
  static thread_local std::array<char, kRecord> unwanted;
  Transfer& transfer = *receives_[in_.tag].front();
  const bool is_wanted = transfer.state_ == Transfer::State::kGoing;
  std::size_t done = 0;
  char* const to =
      is_wanted ? transfer.data_ + transfer.done_ : unwanted.data();
  if (socket_->read(to, std::min(in_left_, kRecord), done) != Status::kDone) {
    return false;
  }
  transfer.done_ += done;
  in_left_ -= done;
  if (in_left_ == 0) finish_receive(in_.tag);
  return true;
}

void PeerLink::finish_receive(int tag) {
  const auto found = receives_.find(tag);
  Transfer& transfer = *found->second.front();
  if (transfer.done_ < transfer.bytes_) return;
  finish(transfer, Transfer::State::kDone);
  found->second.pop_front();
  if (found->second.empty()) receives_.erase(found);
}

void PeerLink::handle(const Frame& frame) {
  switch (frame.kind) {
    case Frame::kReady:
      ready_[frame.tag].push_back(frame.bytes);
      match(frame.tag);
      return flush(kInline);
    case Frame::kData:
    case Frame::kShared:
      return begin_data(frame);
    case Frame::kTaken:
      return free_shared(frame.bytes);
    default:
      fail("a frame of kind " + std::to_string(frame.kind) + " from " + peer() +
           ", but there are kinds 1 to 4");
  }
}

void PeerLink::begin_data(const Frame& frame) {
  const auto found = receives_.find(frame.tag);
  const std::string from = " from " + peer();
  if (found == receives_.end()) {
    return fail("a message with tag " + std::to_string(frame.tag) + from +
                ", but none is expected");
  }
  Transfer& transfer = *found->second.front();
  if (frame.bytes > transfer.bytes_ - transfer.done_) {
    return fail(std::to_string(frame.bytes) + " more bytes" + from + " after " +
                std::to_string(transfer.done_) + " of a message of " +
                std::to_string(transfer.bytes_));
  }
  if (frame.kind == Frame::kShared) {
    if (!socket_->shared() || frame.bytes > SharedMemory::kRing) {
      return fail(std::to_string(frame.bytes) + " bytes in shared memory" +
                  from + ", which has no such memory");
    }
    read_shared(transfer, frame.bytes);
    return finish_receive(frame.tag);
  }
  in_left_ = frame.bytes;
  if (in_left_ == 0) finish_receive(frame.tag);
}

void PeerLink::read_shared(Transfer& transfer, std::size_t bytes) {
  if (transfer.state_ == Transfer::State::kGoing) {
    socket_->shared()->read(taken_, transfer.data_ + transfer.done_, bytes);
  }
  transfer.done_ += bytes;
  taken_ += bytes;
  // Not for each piece: the sender waits only when the ring is full.
  if (taken_ - told_ < SharedMemory::kRing / 2) return;
  notices_.push_back({Frame::kTaken, 0, taken_ - told_});
  told_ = taken_;
  flush(kInline);
}

void PeerLink::free_shared(std::size_t bytes) {
  if (bytes > written_ - freed_) {
    return fail(peer() + " has read " + std::to_string(bytes) +
                " bytes of shared memory, of " +
                std::to_string(written_ - freed_) + " that were there");
  }
  freed_ += bytes;
  flush(kInline);
}

}  // namespace gpipe::internal
