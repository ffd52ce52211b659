// An exported language model beside the hand-written ones of peer_model.h.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/peers/peer_model.h"

namespace gpipe::benchmarks {

// Returns the data and the loss of a step of the language model in `path`, a
// file of tools/export_examples.py, without its layers. Input and target are
// tokens, `batch` rows of `side`, drawn as exported_model.py draws them. Throws
// what exported_signature() throws.
PeerModel exported_peer_data(const std::string& path, int64_t batch,
                             int64_t side, uint64_t seed);

// Returns the layers per partition of the model in `path` if a partition begins
// at each of these Python modules, such as "model.layers.4". Reads no weights.
//
// Throws std::invalid_argument if there is no cut before such a module, or if
// the modules are not in the order of the layers. Throws what load_exported()
// throws.
std::vector<int64_t> balance_of_modules(
    const std::string& path, const std::vector<std::string>& modules);

}  // namespace gpipe::benchmarks
