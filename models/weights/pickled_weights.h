// Finds the weights in a pickle that holds other things, too.
#pragma once

#include <string_view>

#include "models/weights/pickle.h"

namespace gpipe::internal {

// Returns the dict of tensors in a pickle: a dict of which at least one value
// is a plain tensor with a text as its name.
//
// `entry`: where the dict is, for example "model" or "nets/0". Each part,
// separated by "/", is a key of a dict, or an index into a list or tuple. A key
// may contain "/" itself. "." is the whole pickle. If `entry` is empty, the
// dict is the first of these:
//
// 1. the entry "state_dict", "model_state_dict", "model" or "module", or the
//    dict that these rules find in this entry,
// 2. the pickle's dict, if a name of its tensors is that of a parameter in a
//    module: "weight", "bias", or one with a dot,
// 3. the only entry that is a dict of tensors,
// 4. the pickle's dict.
//
// Throws c10::ValueError if there is no such dict, or if rule 3 finds several.
// The error lists the entries that can be named. Thread-safe.
const PickleValue& weights_in(const PickleValue& value, std::string_view entry);

}  // namespace gpipe::internal
