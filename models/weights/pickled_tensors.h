// Creates tensors from the objects of a pickle.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "models/weights/pickle.h"
#include "models/weights/state_dict.h"

namespace gpipe::internal {

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
