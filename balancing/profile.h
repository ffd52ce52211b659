// Times and memory of a model's layers in one struct, and its JSON file format.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "balancing/memory_profile.h"
#include "balancing/time_profile.h"
#include "gpipe/runtime/cell/value.h"

namespace gpipe::balancing {

// The measurements from which a cut of a model is chosen. `names`, `times` and
// `memory.layers` have one entry per layer.
struct Profile {
  std::string device;  // on which the times were measured: "cpu", "cuda:0"
  // Of the sample's first tensor, along dimension 0. Set it to the rows of
  // another tensor if the first one is not split into micro-batches.
  int64_t rows = 0;
  std::vector<std::string> names;  // of the layers in the Sequential
  std::vector<LayerTime> times;
  MemoryProfile memory;
};

namespace detail {
Profile profile(const torch::nn::Sequential& module,
                const internal::Value& sample, const TimeOptions& options);
}  // namespace detail

// Profiles the times and the memory of `module` for one sample. See
// profile_times() and profile_memory() for what is measured, what stays
// unchanged and which errors are thrown.
//
// Throws c10::ValueError if `module` is null.
// Threads: as for profile_times().
template <typename Sample>
Profile profile(torch::nn::Sequential module, Sample sample,
                const TimeOptions& options = {}) {
  return detail::profile(module, internal::Value::wrap(std::move(sample)),
                         options);
}

// Returns `profile` as JSON that a person can read and edit: one object per
// layer, with seconds and bytes as plain numbers.
//
//   {"format": "gpipe profile 1", "device": "cpu", "rows": 8,
//    "input_bytes": 4816896,
//    "layers": [{"name": "conv1", "forward_seconds": 0.0021,
//                "backward_seconds": 0.0035, "parameter_bytes": 37632,
//                "trained_bytes": 37632, "buffer_bytes": 0,
//                "output_bytes": 25690112, "kept_bytes": 25690112,
//                "forward_peak_bytes": 25690112, "saved_bytes": 0,
//                "saved_for_weights_bytes": 25690112,
//                "kept_by": {"ConvolutionBackward0": 4816896}}, ...],
//    "skips": [{"stashed_by": "layer1_0_identity",
//               "popped_by": "layer1_0_residual", "bytes": 6422528}, ...],
//    "saved_by_several": [{"bytes": 25690112, "layers": ["bn1", "relu"]}, ...],
//    "saved_for_weights_by_several": [...]}
//
// If these were measured (LayerTime), a layer also has
// "backward_input_seconds", "backward_weight_seconds" and "accumulate_seconds".
//
// "saved_bytes" counts the tensors that only this layer saves for backward.
// Tensors that several layers save are in "saved_by_several". The same two with
// "for_weights" have MemoryProfile::saved_for_weights. "kept_by" has
// LayerMemory::operators. A layer must have a "name". Its other members default
// to 0, and the lists default to empty.
//
// Throws std::invalid_argument unless there are as many names as times and as
// memory of layers, or if a name is not UTF-8, and std::out_of_range if a skip
// or a saved tensor refers to a layer that does not exist. Threads: pure
// function.
std::string to_json(const Profile& profile);

// Returns a table for people: for each layer that keeps something for backward,
// its name, the bytes that it keeps alone on its device, and the `most`
// operators that keep most of them, with their bytes. Layers of unknown
// operators are left out.
//
// Throws std::out_of_range if `profile` has fewer names than layers.
// Threads: pure function.
std::string kept_text(const Profile& profile, int most = 3);

// Parses the output of to_json(). The numbers are equal to the bit.
//
// `source`: the name of the text in error messages, for example the file's
// path.
//
// Throws c10::ValueError if `text` is not JSON (with line and column), if its
// format is a different one, if a name is missing, repeated or unknown, if a
// member is unknown, if a number is negative or infinite or the value is not a
// number, or if fewer than two layers share an entry of "saved_by_several". The
// text names `source`, the place and the value.
// Threads: pure function.
Profile profile_from_json(const std::string& text, const std::string& source);

// Write a profile to a file and read it from one.
//
// Throw c10::ValueError naming `path` if the file cannot be written or read,
// and whatever to_json() and profile_from_json() throw.
// Threads: may be called from any thread. The file is not locked.
void write_profile(const Profile& profile, const std::string& path);
Profile read_profile(const std::string& path);

}  // namespace gpipe::balancing
