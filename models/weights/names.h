// Renames the tensors of a state dict.
#pragma once

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "models/weights/state_dict.h"

namespace gpipe {

// Pairs of an old and a new name.
using NameTable = std::vector<std::pair<std::string, std::string>>;

// Returns `table` with old and new names exchanged. Thread-safe.
NameTable inverse(const NameTable& table);

// Returns `dict` with the names of `table` replaced, in the same order. Names
// that are not in the table stay. Entries of the table that are not in the dict
// are ignored, so that load_state_dict() reports what is missing or unexpected.
//
// Throws c10::ValueError if the table has an old name twice, or if two tensors
// would get the same name. The error lists the names. Thread-safe.
StateDict rename(const StateDict& dict, const NameTable& table);

namespace internal {

using NameSet = std::unordered_set<std::string>;

// The difference between the names of a model and those of a file: one of both
// has a prefix, such as "transformer." or that of a module around the model.
// Thread-safe.
class NamePrefix {
 public:
  // Finds the prefix with which most of `names` are in the file: none, unless
  // one is better than all others.
  NamePrefix(const NameSet& names, const NameSet& in_file);

  const std::string& text() const { return text_; }  // with its dot
  // Returns the name in the file of one of the model.
  std::string in_file(const std::string& name) const;
  // Returns the name in the model of one of the file.
  std::string in_model(const std::string& name) const;

 private:
  std::string text_;
  bool of_model_ = false;  // the model's names have it, else the file's
};

}  // namespace internal
}  // namespace gpipe
