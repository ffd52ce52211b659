#include "gpipe/distributed/error.h"

#include <c10/util/StringUtil.h>

namespace gpipe {

// tools/launch.cc looks for these words in the output of ranks.
const char* to_string(Fault fault) {
  switch (fault) {
    case Fault::kFailed:
      return "has failed";
    case Fault::kDied:
      return "has died";
    case Fault::kFrozen:
      return "is frozen";
    case Fault::kTimeout:
      return "has not answered in time";
    case Fault::kDisagree:
      return "disagrees";
    case Fault::kLeft:
      return "has left";
    case Fault::kRefused:
      return "has refused its arguments";
  }
  return "?";
}

std::string RankFailure::to_string() const {
  std::string text = c10::str("rank ", rank, " ", gpipe::to_string(fault));
  if (!what.empty()) text += ": " + what;
  if (reporter != rank) text += c10::str(" [noticed by rank ", reporter);
  if (!action.empty()) {
    text += reporter != rank ? " in " + action + "]" : " [in " + action + "]";
  } else if (reporter != rank) {
    text += "]";
  }
  return text;
}

}  // namespace gpipe
