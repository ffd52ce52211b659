#include "gpipe/schedule/microbatches.h"

#include "gpipe/base/text.h"

namespace gpipe {

Checkpoint parse_checkpoint(std::string_view text) {
  for (const Checkpoint mode :
       {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways}) {
    if (text == to_string(mode)) return mode;
  }
  internal::refuse("--checkpoint=", text,
                   ": must be never, except_last or always");
}

}  // namespace gpipe
