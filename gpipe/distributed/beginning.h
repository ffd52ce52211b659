// The message that each rank sends to all others at the beginning of a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/distributed/layout.h"

namespace gpipe::internal {

// The arguments that one rank was given for a step.
struct Beginning {
  // Whether this rank refuses the step, and the text of its exception.
  bool refused = false;
  std::string refusal;
  // CRC-32C of the schedule's text.
  uint32_t schedule = 0;
  // On the first rank of a pipeline the rows of the input, on its last rank
  // those of the target; -1 if this rank has neither.
  int64_t rows = -1;
  // Whether this input or target is given as Microbatches.
  bool split = false;
  // The seed of the step's random numbers, if this rank has the first stage.
  uint64_t seed = 0;

  // Returns this message as bytes.
  std::string encode() const;
  // Returns the message in `bytes`. Throws c10::Error if the number of bytes
  // does not fit the content.
  static Beginning decode(const std::string& bytes);
};

// A rank that was given something that does not fit, and what that is.
struct Misfit {
  int rank = 0;
  std::string what;
};

// Returns the first last rank of a pipeline whose target does not fit the input
// of the first rank; nullopt if all fit.
// `all`: by rank of the world; none has refused the step.
// `layout`: its own rank is not used.
std::optional<Misfit> find_other_rows(const std::vector<Beginning>& all,
                                      const RankLayout& layout);

// Two ranks that were given different schedules.
struct OtherSchedule {
  // `rank` has another schedule than `most`, whose schedule the most ranks
  // have.
  int rank = 0, most = 0;
};

// Returns the first rank with another schedule than the most common one;
// nullopt if all are equal. Of two that are equally common, the one of the
// lower rank counts.
// `all`: by rank of the world.
std::optional<OtherSchedule> find_other_schedule(
    const std::vector<Beginning>& all);

}  // namespace gpipe::internal
