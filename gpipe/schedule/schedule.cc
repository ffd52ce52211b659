#include "gpipe/schedule/schedule.h"

namespace gpipe {

std::string to_string(const Action& action) {
  static constexpr char kLetters[] = {'F', 'B', 'I', 'W', 'R', 'O', 'L'};
  return std::to_string(action.stage) +
         kLetters[static_cast<int>(action.kind)] +
         std::to_string(action.microbatch);
}

}  // namespace gpipe
