// Which accesses to memory are ordered, and which only happened to be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::simulated {

// How much of each stream's work is known to be done: a vector clock (Mattern
// 1988), one entry per stream.
class Clock {
 public:
  std::uint64_t at(std::size_t stream) const {
    return stream < times_.size() ? times_[stream] : 0;
  }
  void set(std::size_t stream, std::uint64_t time);
  void merge(const Clock& other);

 private:
  std::vector<std::uint64_t> times_;
};

// Bytes [begin, end) that an operation reads or writes.
struct Access {
  std::uintptr_t begin = 0, end = 0;
  bool write = false;
};

// Follows the work that is given to streams, the events that order it, and the
// memory that it touches. Two operations on different streams that touch the
// same byte, one of them writing, race unless an event (or the host, by
// waiting) orders them; that is told whatever the timing of the run was.
//
// The host is one clock for all threads: who it was that waited is not looked
// at, so that a missing hand-over between host threads is not found here (TSan
// finds those), and nothing is reported that is no race.
//
// Threads: calls must be serialised by the caller, in the order in which the
// work is given.
class HappensBefore {
 public:
  // The next operation on `stream`, and its accesses.
  void operate(std::size_t stream, const std::string& name,
               std::optional<std::int64_t> microbatch,
               const std::vector<Access>& accesses);

  // What is done when the last operation of `stream` is.
  Clock record(std::size_t stream);
  // Later operations on `stream` come after `clock`.
  void wait(std::size_t stream, const Clock& clock);
  // Later operations on every stream do.
  void host_waited(const Clock& clock);

  // A block of memory exists from now on. Nothing is known of it.
  void add_block(std::uintptr_t begin, std::uintptr_t end);
  void remove_block(std::uintptr_t begin);
  // The block is given back by its owner: it may be used again after what
  // `stream`, which it was allocated for, and the streams `recorded` have
  // been given so far. An earlier access that is not done by then races with
  // whatever comes next.
  void release_block(std::uintptr_t begin, std::size_t stream,
                     const std::vector<std::size_t>& recorded);

  // "" for the default: "stream 3".
  void name_stream(std::size_t stream, std::string name);

  // One text per race found since the last call, with both operations, their
  // streams and micro-batches.
  std::vector<std::string> take_races();

 private:
  struct Past {
    Access access;
    std::size_t stream;
    std::uint64_t time;
    std::string name;
    std::optional<std::int64_t> microbatch;
  };
  struct Block {
    std::uintptr_t end = 0;
    std::vector<Past> history;
  };

  Block* block_of(const Access& access, std::uintptr_t& begin);
  std::string describe(const Past& past) const;
  void report(const Past& first, const Past& second, std::uintptr_t begin,
              const Block& block);
  Clock& clock(std::size_t stream);

  std::vector<Clock> clocks_;  // by stream
  Clock host_;
  std::map<std::uintptr_t, Block> blocks_;  // by begin
  std::map<std::size_t, std::string> names_;
  std::vector<std::string> races_;
};

}  // namespace gpipe::simulated
