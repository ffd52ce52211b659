// The manifest: the last file of a run checkpoint to be written. It records the
// size and the checksums of the other files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "training/files/tensor_file.h"
#include "training/optimizer_state.h"

namespace gpipe::internal {

// The name of the manifest's file in a step's folder.
constexpr char kManifestName[] = "manifest.json";

// The content of a run checkpoint without the values of its tensors.
struct Manifest {
  // The files of one process. A missing one had no tensors to hold.
  struct Part {
    std::optional<TensorFileRecord> model, optimizer, generators;
  };

  int64_t step = 0;
  std::map<std::string, std::string> metadata;
  std::vector<Part> parts;

  // The optimizer's state with undefined tensors. The value of each tensor is
  // in one of the optimizer files under tensor_key(what, parameter).
  std::optional<OptimizerState> optimizer;
};

// Returns the name of an optimizer's tensor in its file: "exp_avg:0.weight".
std::string tensor_key(const std::string& what, const std::string& parameter);

// Returns the manifest as JSON. The last line but one is the CRC-32C of all
// bytes before that line. Throws c10::ValueError if a text is not UTF-8.
// Thread-safe.
std::string manifest_text(const Manifest& manifest);

// Returns the manifest in `text`, which manifest_text() has written. Throws
// Damage if any byte of `text` has changed. Throws c10::ValueError if `text` is
// complete but has a later version of the format. Thread-safe.
Manifest parse_manifest(std::string_view text);

// Returns one manifest for all processes. Each of `parts` is the manifest of
// one process for the same step. `metadata` is that of the first.
//
// Throws c10::ValueError if the steps or the optimizers' types differ, or if
// two processes have a tensor of the same name. Thread-safe.
Manifest merge(std::vector<Manifest> parts);

}  // namespace gpipe::internal
