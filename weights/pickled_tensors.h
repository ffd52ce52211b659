// From what a pickle says of tensors to tensors.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>
#include <string>

#include "weights/pickle.h"
#include "weights/state_dict.h"

namespace gpipe {

// The storage with this key, which the pickle says has so many bytes. Asked
// once for each key.
using StorageReader =
    std::function<c10::Storage(const std::string& key, int64_t bytes)>;

// The tensors of a dict in a pickle, or, if it has none, of the dict that is
// its entry "state_dict" or "model". Entries that are no tensors are left out,
// and no storage is read but for those that are.
//
// Errors: c10::ValueError for a tensor that reaches beyond its storage, and for
// names that are not text or are there twice; and if there is no tensor, which
// says what there is.
// Threads: pure function, but for `storage`.
StateDict tensors_of(const PickleValue& value, const StorageReader& storage);

}  // namespace gpipe
