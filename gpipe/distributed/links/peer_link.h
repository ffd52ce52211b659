// Messages over one connection. No LibTorch.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "gpipe/distributed/links/frame.h"
#include "gpipe/distributed/links/socket.h"

namespace gpipe::internal {

class PeerLink;

// A message that is being sent or received. Thread-safe.
class Transfer {
 public:
  // Blocks until the transfer is complete, at most for `timeout` (nullopt: no
  // limit). Returns false if it was aborted. Throws LinkError if the connection
  // is broken or is not there by its deadline, or if the timeout has passed.
  bool wait(std::optional<std::chrono::milliseconds> timeout);

  // Ends the wait. The memory is not used after that. A message that has been
  // sent in part breaks the connection.
  void abort();

  // Returns whether the transfer has completed, failed or been aborted.
  bool is_over() const;

 private:
  friend class PeerLink;
  enum class State { kGoing, kDone, kFailed, kAborted };

  std::shared_ptr<PeerLink> link_;
  std::shared_ptr<const void> owner_;  // keeps the memory
  char* data_ = nullptr;
  std::size_t bytes_ = 0, done_ = 0;
  bool is_send_ = false;
  State state_ = State::kGoing;
  std::condition_variable changed_;
};

// The connection to one other process.
//
// Messages have tags. Messages of one tag are received in the order in which
// they are sent. A message is sent when its receive has been posted (the
// receiver tells the sender), into the memory of that receive. So messages of
// different tags do not wait for each other, and nothing is buffered.
//
// If the socket has shared memory (socket.h), the bytes of longer messages go
// through that, and so do the notices that a receive is posted or that bytes
// have been read. They wake the other end only if it waits for one.
//
// Transfers can be started before the connection is there. They go on when
// attach() has given the link a socket.
//
// Thread-safe. A Mesh calls on_events() on its thread.
class PeerLink : public std::enable_shared_from_this<PeerLink> {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `epoll`: where to register the socket, with this object as its data.
  // `deadline`: if the link has no socket then, all transfers fail.
  // `missing`: returns the text of that error.
  PeerLink(int epoll, TimePoint deadline, std::function<std::string()> missing);
  ~PeerLink();

  // Takes the socket. Returns "", or the reason why it is not taken: there is
  // one, or the link is broken.
  std::string attach(Socket& socket);

  // Start to send or to receive `bytes` bytes. `owner` keeps the memory alive
  // while it is needed. Throw LinkError if the connection is broken.
  std::shared_ptr<Transfer> send(int tag, const void* data, std::size_t bytes,
                                 std::shared_ptr<const void> owner);
  std::shared_ptr<Transfer> receive(int tag, void* data, std::size_t bytes,
                                    std::shared_ptr<const void> owner);

  // Between hold() and release(), which nest, frames are kept, so that the
  // other end is woken once for all of them.
  void hold();
  void release();

  // Handles events of epoll. Returns whether more has arrived than was handled.
  bool on_events();

  // Fails all transfers, now and later, with the text `reason`.
  void close(const std::string& reason);

 private:
  friend class Transfer;
  using TransferPtr = std::shared_ptr<Transfer>;

  struct Outgoing {
    int tag = 0;
    TransferPtr transfer;

    std::size_t left() const { return transfer->bytes_ - transfer->done_; }
  };
  // What a thread that sends writes itself; the mesh's thread does the rest.
  static constexpr std::size_t kInline = 64 << 10;
  // What is sent at once: a TLS record.
  static constexpr std::size_t kRecord = 16384;

  // These need the mutex.
  TransferPtr start(bool is_send, void* data, std::size_t bytes,
                    std::shared_ptr<const void> owner);
  void match(int tag);
  void flush();
  void advance();
  bool is_stuck() const;
  bool look();
  void post_notices();
  void fill_record();
  void put(const Frame& frame);
  void put_data();
  bool put_shared();
  bool read_some();
  void read_header();
  void read_data();
  std::size_t take_bytes(void* to, std::size_t size);
  void handle(const Frame& frame);
  void begin_data(const Frame& frame);
  void read_shared(Transfer& transfer, std::size_t bytes);
  void free_shared(std::size_t bytes);
  void finish_receive(int tag);
  void finish(Transfer& transfer, Transfer::State state);
  void arm(bool for_write);
  void fail(const std::string& reason);
  void abort(Transfer& transfer);

  // Returns null if there is none.
  SharedMemory* shared() const { return socket_ ? socket_->shared() : nullptr; }
  // Returns the place of the other end for texts.
  std::string peer() const;

  mutable std::mutex mutex_;
  std::optional<Socket> socket_;
  const int epoll_;
  const TimePoint deadline_;
  const std::function<std::string()> missing_;
  bool is_armed_ = false;  // for writing
  std::string broken_;     // the reason; "" while it works
  int holds_ = 0;

  // To be sent: notices, messages whose receive is posted, others by tag.
  std::deque<Frame> notices_;
  bool is_box_full_ = false;  // notices go through the socket from then on
  bool must_wake_ = false;    // the other end waits for a notice that is there
  std::deque<Outgoing> outgoing_;
  std::map<int, std::deque<TransferPtr>> waiting_;
  std::map<int, std::deque<uint64_t>> ready_;  // sizes of posted receives there
  std::array<char, kRecord> record_;
  std::size_t record_size_ = 0;

  // What has been read from the socket and not handled.
  std::array<char, kRecord> arrived_;
  std::size_t arrived_begin_ = 0, arrived_end_ = 0;
  std::map<int, std::deque<TransferPtr>> receives_;
  Frame in_;
  std::size_t in_header_ = 0;  // bytes of the header that have arrived
  std::size_t in_left_ = 0;    // bytes of data that follow

  // Bytes in the shared memory, in total.
  uint64_t written_ = 0, freed_ = 0;  // by this end; of these by the other end
  uint64_t taken_ = 0, told_ = 0;     // from there; of these told to there
};

}  // namespace gpipe::internal
