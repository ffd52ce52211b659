// What a link does with the frames that arrive.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "gpipe/distributed/links/peer_link.h"
#include "gpipe/distributed/links/shared_memory.h"

namespace gpipe::internal {

using Status = Socket::Status;

// Handles one header or one piece of data. Returns false if nothing is there.
bool PeerLink::read_some() {
  if (arrived_begin_ == arrived_end_) {
    arrived_begin_ = 0;
    const Status status = socket_->read(arrived_.data(), kRecord, arrived_end_);
    if (status != Status::kDone) return false;
  }
  if (in_left_ == 0) {
    read_header();
  } else {
    read_data();
  }
  return broken_.empty();
}

// Takes at most `size` bytes of what has arrived, and returns how many. `to`:
// null to throw them away.
std::size_t PeerLink::take_bytes(void* to, std::size_t size) {
  const std::size_t taken = std::min(size, arrived_end_ - arrived_begin_);
  if (to) std::memcpy(to, arrived_.data() + arrived_begin_, taken);
  arrived_begin_ += taken;
  return taken;
}

void PeerLink::read_header() {
  in_header_ += take_bytes(reinterpret_cast<char*>(&in_) + in_header_,
                           sizeof in_ - in_header_);
  if (in_header_ < sizeof in_) return;
  in_header_ = 0;
  look();  // see post_notices()
  if (broken_.empty()) handle(in_);
}

void PeerLink::read_data() {
  Transfer& transfer = *receives_[in_.tag].front();
  const bool is_wanted = transfer.state_ == Transfer::State::kGoing;
  const std::size_t taken = take_bytes(
      is_wanted ? transfer.data_ + transfer.done_ : nullptr, in_left_);
  transfer.done_ += taken;
  in_left_ -= taken;
  if (in_left_ == 0) finish_receive(in_.tag);
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
      return match(frame.tag);
    case Frame::kData:
    case Frame::kShared:
      return begin_data(frame);
    case Frame::kTaken:
      return free_shared(frame.bytes);
    case Frame::kLook:
      return;  // read_header() has looked
    default:
      fail("a frame of kind " + std::to_string(frame.kind) + " from " + peer() +
           ", but there are kinds 1 to 5");
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
    if (!shared() || frame.bytes > SharedMemory::kRing) {
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
    shared()->read(taken_, transfer.data_ + transfer.done_, bytes);
  }
  transfer.done_ += bytes;
  taken_ += bytes;
  // Not for each piece: the sender waits only when the ring is full.
  if (taken_ - told_ < SharedMemory::kRing / 2) return;
  notices_.push_back({Frame::kTaken, 0, taken_ - told_});
  told_ = taken_;
  flush();
}

void PeerLink::free_shared(std::size_t bytes) {
  if (bytes > written_ - freed_) {
    return fail(peer() + " has read " + std::to_string(bytes) +
                " bytes of shared memory, of " +
                std::to_string(written_ - freed_) + " that were there");
  }
  freed_ += bytes;
}

}  // namespace gpipe::internal
