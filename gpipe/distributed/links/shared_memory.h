// Memory that two processes of one machine share. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "gpipe/distributed/links/frame.h"
#include "gpipe/processes/descriptor.h"

namespace gpipe::internal {

// For each direction between two processes a ring of bytes, and a box of
// notices.
//
// The two ends tell each other how much has been written to a ring and read
// there, by notices or by other means that order memory (a socket does).
//
// A notice does not wake the other end. An end that needs one sets a request,
// takes what is in the box, and then sleeps; the other end finds the request
// after it has put the next notice there, and wakes it by other means.
//
// One process makes the memory and tells the other one its place; the other one
// maps it by /proc. That works between processes of one user on one machine who
// see each other's processes. The memory has no name in a file system, and ends
// with its last process.
//
// Threads: one at a time at each end; the two ends need no lock.
class SharedMemory {
 public:
  // The bytes of a ring. Rings that fit the second-level cache are the fastest.
  static constexpr std::size_t kRing = std::size_t{1} << 20;
  // The notices of a box.
  static constexpr std::size_t kNotices = 1024;

  // Where a process has the memory open. `process` 0: nowhere.
  struct Place {
    int32_t process = 0, file = 0;
  };

  // Returns new memory, or null if the system has none. `token`: a random
  // number by which open() recognises the memory.
  static std::unique_ptr<SharedMemory> make(uint64_t token);

  // Returns the memory at the place that another process has told, or null if
  // there is none that this process may map, or if it was made with another
  // token. Never blocks.
  static std::unique_ptr<SharedMemory> open(const Place& place, uint64_t token);

  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Returns the place until close_file(), after which only the processes that
  // have mapped the memory have it.
  Place place() const;
  void close_file() { file_.close(); }

  // Copies bytes into the ring of this end, or out of that of the other end.
  // `at`: how many bytes were written or read before. `size`: at most kRing.
  void write(uint64_t at, const void* from, std::size_t size);
  void read(uint64_t at, void* to, std::size_t size) const;

  // Puts a notice into the box of this end. Returns false if that is full.
  bool put(const Frame& notice);
  // Takes the oldest notice from the box of the other end. Returns false if
  // that is empty. The notice has kind 0 if the box claims to hold more than it
  // can.
  bool take(Frame& notice);
  // Sets whether the other end is to wake this one after its next notice.
  void request(bool is_to_wake);
  // Returns whether this end is to wake the other one, and clears its request.
  // Call it after put().
  bool take_request();

 private:
  struct Box;
  struct Layout;
  Box& box_of(bool is_own) const;
  SharedMemory(Descriptor file, Layout* memory, bool is_maker);
  static Layout* map(const Descriptor& file);

  Descriptor file_;
  Layout* const memory_;
  const bool is_maker_;
};

}  // namespace gpipe::internal
