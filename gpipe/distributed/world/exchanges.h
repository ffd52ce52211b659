// Exchanges among ranks: the texts of all, a check that all were given the same
// options, and the times of their clocks.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/world/communicator.h"

namespace gpipe::internal {

// Returns the text `mine` of each of `members`, in the order of `members`. The
// texts are collected at the first member and sent back, both along a binomial
// tree (topology.h): a member exchanges messages with at most log2(n) + 1
// others, and no member returns before all have called. All texts together have
// at most 1 GiB. `members`: ranks of the world, ascending, this rank among
// them; the same on all. `tag`: the same on all members. `action`: what the
// call is for, in error texts; the same on all members.
//
// Throws PeerError if the world has failed, or if a member calls with another
// `action`. Threads: one call at a time for each `tag`.
std::vector<std::string> all_gather(Communicator& world,
                                    const std::vector<int>& members, int tag,
                                    const std::string& mine,
                                    const std::string& action);

// Does the same among all ranks of the world.
std::vector<std::string> all_gather(Communicator& world, int tag,
                                    const std::string& mine,
                                    const std::string& action);

// Blocks until all `members` have called, or the world has failed. Each calls
// it between an exchange and an error that all of them find in what they have
// received: the first one to throw may end the world, and with it an exchange
// that another one still waits in. Does not throw PeerError. Arguments: as for
// all_gather().
void meet(Communicator& world, const std::vector<int>& members, int tag,
          const std::string& action);

// Returns the texts of all ranks, by rank, on rank 0, and nothing on the other
// ranks. Each rank sends its text to rank 0 alone, in pieces, so that it may
// have any length. `tag`, `action`, errors and threads: as for all_gather().
// No rank returns before all have called.
std::vector<std::string> gather(Communicator& world, int tag,
                                const std::string& mine,
                                const std::string& action);

// The texts of two members that differ.
struct TextDifference {
  int rank = 0;  // of the first member whose text is not that of `members[0]`
  std::string first, other;  // the texts of `members[0]` and of `rank`
};

// Returns how the texts `mine` of `members` differ, the same on all members, or
// nullopt if they are equal. Compares checksums (CRC-32C) first, and exchanges
// no more than the two texts: those of a large model, of 1,000 ranks, would be
// too much. Blocks until all members have called. Arguments and errors: as for
// all_gather().
std::optional<TextDifference> find_difference(Communicator& world,
                                              const std::vector<int>& members,
                                              int tag, const std::string& mine,
                                              const std::string& action);

// A list of (name, value) pairs that must be equal on all ranks, such as
// {"balance", "[2, 2]"}. Only the first pair that differs is reported, so pairs
// that explain others come first.
using Terms = std::vector<std::pair<std::string, std::string>>;

// Blocks until all ranks know that their `terms` are equal. What all of them
// refuse afterwards may be thrown without meet(). All ranks call with the same
// `tag` (see Tags).
//
// Throws PeerError on every rank if a term differs; it names the first such
// term, the rank and both values. Throws PeerError if the world has failed.
//
// Threads: one call at a time for each `tag`.
void agree(Communicator& world, int tag, const Terms& terms);

// What a rank knows of the clock of rank 0.
struct ClockOffset {
  // Seconds to add to std::chrono::steady_clock here to get that of rank 0, and
  // the largest error of it.
  double seconds = 0, error = 0;
  // Seconds of the clock here at the time of the measurement.
  double at = 0;
};

// Measures the offset of this rank's clock. All ranks call it at the same
// point. Blocks until rank 0 has answered all ranks before and this one.
//
// Each of 16 answers of rank 0 has the time of its clock, which was read
// between the sending of the question and the arrival of the answer. The offset
// is in the intersection of these 16 intervals; `seconds` is its middle, and
// `error` half its length. So no assumption is made about how the two ways
// share a round trip. Drift within the exchange, some nanoseconds, is
// neglected.
//
// `channel`: Communicator::next_channel(), for the tag of the messages.
// Throws PeerError if the world has failed.
ClockOffset measure_clock(Communicator& world, int channel);

// Returns the offset at `time` (seconds of the clock here), on the line through
// two measurements. Its error is the larger one of both.
ClockOffset offset_at(const ClockOffset& before, const ClockOffset& after,
                      double time);

}  // namespace gpipe::internal
