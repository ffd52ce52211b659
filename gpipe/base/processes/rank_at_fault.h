// Finds in the output of a rank which rank it calls the cause of its failure.
#pragma once

#include <array>
#include <string_view>

namespace gpipe {

// The words after "rank 2 " in the text of a gpipe::PeerError. They are those
// of gpipe::to_string(Fault), which needs LibTorch (rank_at_fault_test.cc
// compares them).
constexpr std::array<std::string_view, 6> kFaultWords = {
    "has failed", "has died", "is frozen", "has not answered in time",
    "disagrees",  "has left"};

// Returns the number in the first "rank 2 has failed", "rank 2 has died", ...
// of `line`; -1 if there is none, or if it does not fit an int.
int rank_at_fault(std::string_view line);

}  // namespace gpipe
