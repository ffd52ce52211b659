// Small words between ranks, outside of the stream of tensors.
#pragma once

#include <string>
#include <vector>

#include "gpipe/distributed/world.h"

namespace gpipe {

// What each of `members` gives, by member, for all of them: by way of the first
// one, so that none returns before all have called. All call with the same
// members, in ascending order, and `tag`; `action` is for error texts.
// PeerError. Threads: one at a time for a tag.
std::vector<std::string> all_gather(World& world,
                                    const std::vector<int>& members, int tag,
                                    const std::string& mine,
                                    const std::string& action);

// Numbers as bytes, for all_gather() between machines of one kind.
template <typename Number>
void put(std::string& bytes, Number value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <typename Number>
Number take(const std::string& bytes, std::size_t& at) {
  Number value{};
  if (at + sizeof value <= bytes.size()) {
    bytes.copy(reinterpret_cast<char*>(&value), sizeof value, at);
  }
  at += sizeof value;
  return value;
}

}  // namespace gpipe
