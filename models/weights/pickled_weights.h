// Finds the weights in the objects of a pickle, and creates their tensors.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "models/weights/pickle.h"
#include "models/weights/state_dict.h"

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

// A function that returns the storage with `key`. `bytes`: the size that the
// pickle claims. It is called once for each key.
using StorageReader =
    std::function<c10::Storage(const std::string& key, int64_t bytes)>;

// Returns the tensors of the dict that weights_in()
// (models/weights/pickled_weights.h) finds. Items that are not tensors, or
// whose name is not a text, are left out. Only storages of tensors in the
// result are read.
//
// Throws c10::ValueError if there is no such dict, if a tensor reaches beyond
// its storage, if a name appears twice, or if an item may be a tensor that is
// not a plain one: an object other than those that
// torch.load(weights_only=True) makes. A module's "_extra_state" may be any
// object. Thread-safe if `storage` is.
StateDict tensors_of(const PickleValue& value, const StorageReader& storage,
                     std::string_view entry = {});

}  // namespace gpipe::internal
