// Times and memory of a model's layers, together and as a file.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "balancing/memory_profile.h"
#include "balancing/time_profile.h"
#include "gpipe/runtime/value.h"

namespace gpipe::balancing {

// What a cut of a model is chosen by. `names`, `times` and `memory.layers` are
// of the same size.
struct Profile {
  std::string device;  // where the times were measured: "cpu", "cuda:0"
  int64_t rows = 0;    // of the sample, along dimension 0
  std::vector<std::string> names;  // of the layers in the Sequential
  std::vector<LayerTime> times;
  MemoryProfile memory;
};

namespace detail {
Profile profile(const torch::nn::Sequential& module, const Value& sample,
                const TimeOptions& options);
}  // namespace detail

// Both profiles of one sample; see profile_times() and profile_memory() for
// what is measured, left unchanged and refused. c10::ValueError for a module
// that is null. Threads: as for profile_times().
template <typename Sample>
Profile profile(torch::nn::Sequential module, Sample sample,
                const TimeOptions& options = {}) {
  return detail::profile(module, Value::wrap(std::move(sample)), options);
}

// As JSON, made to be read and changed by a person: an object per layer, all
// that concerns it in it, seconds and bytes as plain numbers.
//
//   {"format": "gpipe profile 1", "device": "cpu", "rows": 8,
//    "input_bytes": 4816896,
//    "layers": [{"name": "conv1", "forward_seconds": 0.0021,
//                "backward_seconds": 0.0035, "parameter_bytes": 37632,
//                "trained_bytes": 37632, "buffer_bytes": 0,
//                "output_bytes": 25690112, "kept_bytes": 25690112,
//                "saved_bytes": 0, "forward_peak_bytes": 25690112}, ...],
//    "skips": [{"stashed_by": "layer1_0_identity",
//               "popped_by": "layer1_0_residual", "bytes": 6422528}, ...],
//    "saved_by_several": [{"bytes": 25690112, "layers": ["bn1", "relu"]}, ...]}
//
// "saved_bytes" is what the layer alone keeps for backward; what other layers
// keep too is in "saved_by_several". Of a layer only its name is needed: what
// is left out is 0, and so are the lists.
//
// Errors: std::out_of_range for a skip or a saved tensor of a layer that there
// is not; nlohmann::json::type_error for a name that is not UTF-8.
// Threads: pure function.
std::string to_json(const Profile& profile);

// The reverse, to the bit. c10::ValueError naming `source`, the place and the
// value: no JSON (with line and column), another format, a name that is
// missing, doubled or unknown, an unknown member, a negative or infinite
// number, something else than a number, or a tensor saved by several that fewer
// than two layers save. Threads: pure function.
Profile profile_from_json(const std::string& text, const std::string& source);

// To and from a file. c10::ValueError, naming it, if it cannot be written or
// read; and those of to_json() and profile_from_json(). Threads: any; the file
// is not locked.
void write_profile(const Profile& profile, const std::string& path);
Profile read_profile(const std::string& path);

}  // namespace gpipe::balancing
