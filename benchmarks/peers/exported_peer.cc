#include "benchmarks/peers/exported_peer.h"

#include <torch/nn/functional/loss.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>

#include "gpipe/base/text.h"
#include "gpipe/meta.h"
#include "models/exported/exported.h"

namespace gpipe::benchmarks {
namespace {

// Returns whether the layer `name` is of the Python module `module`, or of a
// module in it.
bool is_of(const std::string& name, std::string module) {
  std::replace(module.begin(), module.end(), '.', '_');
  return name.rfind(module, 0) == 0 &&
         (name.size() == module.size() || name[module.size()] == '_');
}

}  // namespace

PeerModel exported_peer_data(const std::string& path, int64_t batch,
                             int64_t side, uint64_t seed) {
  const ExportedSignature signature = exported_signature(path);
  const int64_t words = signature.outputs.at(0).sizes.back().value();
  PeerModel result{nullptr, {}, {}, {}};
  torch::manual_seed(seed + 1);
  result.input = torch::randint(words, {batch, side}, torch::kLong);
  result.target = torch::randint(words, {batch, side}, torch::kLong);
  result.loss = [](const at::Tensor& output, const at::Tensor& target) {
    return torch::nn::functional::cross_entropy(output.flatten(0, 1),
                                                target.flatten());
  };
  return result;
}

std::vector<int64_t> balance_of_modules(
    const std::string& path, const std::vector<std::string>& modules) {
  const ExportedModel model = [&] {
    const MetaGuard meta;
    return load_exported(path);
  }();
  const std::vector<std::string> names = model.layers->named_children().keys();
  std::vector<int64_t> balance;
  int64_t begin = 0;
  for (const std::string& module : modules) {
    const auto found = std::find_if(
        names.begin(), names.end(),
        [&](const std::string& name) { return is_of(name, module); });
    const int64_t place = found - names.begin();
    if (found == names.end() || place <= begin) {
      internal::refuse("--cut=", module, ": ", path,
                       " has no layer that begins this module after layer ",
                       begin, "; //tools:exported lists the layers");
    }
    balance.push_back(place - begin);
    begin = place;
  }
  balance.push_back(static_cast<int64_t>(names.size()) - begin);
  return balance;
}

}  // namespace gpipe::benchmarks
