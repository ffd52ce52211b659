#include "gpipe/distributed/error.h"

#include <c10/util/StringUtil.h>

#include <cstddef>

#include "gpipe/base/processes.h"

namespace gpipe {

const char* to_string(Fault fault) {
  return kFaultWords[static_cast<std::size_t>(fault)];
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
