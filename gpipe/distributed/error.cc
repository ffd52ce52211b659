#include "gpipe/distributed/error.h"

#include <c10/util/StringUtil.h>

namespace gpipe {

// tools/launch.cc looks for these words in the output of ranks.
const char* to_string(Fault fault) {
  // In the order of Fault.
  constexpr const char* kTexts[] = {"has failed",
                                    "has died",
                                    "is frozen",
                                    "has not answered in time",
                                    "disagrees",
                                    "has left",
                                    "has refused its arguments"};
  return kTexts[static_cast<int>(fault)];
}

std::string RankFailure::to_string() const {
  std::string text = c10::str("rank ", rank, " ", gpipe::to_string(fault));
  if (!what.empty()) text += ": " + what;
  std::string noticed;
  if (reporter != rank) noticed = c10::str(" noticed by rank ", reporter);
  if (!action.empty()) noticed += " in " + action;
  return noticed.empty() ? text : text + " [" + noticed.substr(1) + "]";
}

}  // namespace gpipe
