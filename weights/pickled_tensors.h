// Creates tensors from the objects of a pickle.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>
#include <string>

#include "weights/pickle.h"
#include "weights/state_dict.h"

namespace gpipe::internal {

// A function that returns the storage with `key`. `bytes`: the size that the
// pickle claims. It is called once for each key.
using StorageReader =
    std::function<c10::Storage(const std::string& key, int64_t bytes)>;

// Returns the tensors of the dict in a pickle. If the dict contains no tensor,
// its entry "state_dict" or "model" is used instead. Entries that are not
// tensors are left out, and only storages of tensors in the result are read.
//
// Throws c10::ValueError if a tensor reaches beyond its storage, if a name is
// not a text or appears twice, or if there is no tensor. In the last case the
// error lists what the pickle contains. Thread-safe if `storage` is.
StateDict tensors_of(const PickleValue& value, const StorageReader& storage);

}  // namespace gpipe::internal
