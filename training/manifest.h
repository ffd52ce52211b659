// The last file of a saved step: what the others are to be, to the byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "training/optimizer_state.h"
#include "training/tensor_file.h"

namespace gpipe {

constexpr char kManifestName[] = "manifest.json";

struct Manifest {
  // What one process has written.
  struct Part {
    std::optional<TensorFileRecord> model, optimizer, generators;
  };

  int64_t step = 0;
  std::map<std::string, std::string> words;
  std::vector<Part> parts;

  // As in the state, but instead of tensors only what they are called: each is
  // in one of the files under tensor_key(what, parameter).
  std::optional<OptimizerState> optimizer;
};

// "exp_avg:0.weight".
std::string tensor_key(const std::string& what, const std::string& parameter);

// JSON, whose last line but one is a checksum of all bytes before that line.
// Errors: c10::ValueError for texts that are not UTF-8. Threads: pure function.
std::string manifest_text(const Manifest& manifest);

// The reverse. Errors: Damage for anything that manifest_text() has not written
// to the last byte; c10::ValueError if it is whole, but of a later version of
// the format. Threads: pure function.
Manifest parse_manifest(std::string_view text);

// `part` is what one process has, with the same step: one manifest of all of
// them, with the words of the first.
//
// Errors: c10::ValueError if they differ in the step or the optimizer's type,
// or if two have a tensor of the same name. Threads: pure function.
Manifest merge(std::vector<Manifest> parts);

}  // namespace gpipe
