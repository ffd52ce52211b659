// Finds accesses to memory that are not ordered, whatever their timing was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::simulated {

// A vector clock (Mattern 1988) with one entry per stream: how much of each
// stream's work is known to be done.
class Clock {
 public:
  std::uint64_t at(std::size_t stream) const {
    return stream < times_.size() ? times_[stream] : 0;
  }
  // Sets the entry of `stream`.
  void set(std::size_t stream, std::uint64_t time);
  // Sets each entry to the larger of both clocks.
  void merge(const Clock& other);

 private:
  std::vector<std::uint64_t> times_;
};

// The bytes [begin, end) that an operation reads or writes.
struct Access {
  std::uintptr_t begin = 0, end = 0;
  bool write = false;
};

// A detector of races between streams. It follows the work of the streams, the
// events that order the work, and the memory that the work accesses. Two
// operations on different streams race if they access the same byte, one of
// them writes, and neither an event nor a wait of the host orders them. A race
// is found whatever the timing of the run was.
//
// All host threads share one clock; which thread waited is ignored. So a
// missing synchronisation between host threads is not found here (TSan finds
// it). Everything that is reported is a race.
//
// Threads: the caller must serialise the calls, in the order in which work is
// enqueued.
class HappensBefore {
 public:
  // Adds the next operation on `stream`, with its accesses.
  void operate(std::size_t stream, const std::string& name,
               std::optional<std::int64_t> microbatch,
               const std::vector<Access>& accesses);

  // Records an event: returns the clock of the work that is done when the last
  // operation of `stream` is.
  Clock record(std::size_t stream);
  // Orders later operations on `stream` after `clock`.
  void wait(std::size_t stream, const Clock& clock);
  // Orders later operations on all streams after `clock`.
  void host_waited(const Clock& clock);

  // Adds a block of memory, without any earlier accesses.
  void add_block(std::uintptr_t begin, std::uintptr_t end);
  // Removes a block. Its accesses are no longer checked.
  void remove_block(std::uintptr_t begin);
  // Marks the block as freed by its owner. `stream`: the stream that the block
  // was allocated for. `recorded`: the streams recorded for it. The block may
  // be used again after all work that these streams have so far. An access that
  // is not done by then races with the next use of the block.
  void release_block(std::uintptr_t begin, std::size_t stream,
                     const std::vector<std::size_t>& recorded);

  // Sets the name of a stream in reports. The default is "stream 3", for
  // example.
  void name_stream(std::size_t stream, std::string name);

  // Returns one text per race found since the last call, with both operations,
  // their streams and micro-batches.
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
