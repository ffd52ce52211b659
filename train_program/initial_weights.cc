#include "train_program/initial_weights.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <vector>

#include "data/checksum.h"
#include "gpipe/text/lists.h"
#include "models/named.h"
#include "weights/names.h"
#include "weights/safetensors.h"
#include "weights/state_dict.h"
#include "weights/torch_file.h"

namespace gpipe::train_program {
namespace {

StateDict read(const std::string& path) {
  const std::string suffix = std::filesystem::path(path).extension().string();
  if (suffix == ".safetensors") return read_safetensors(path).tensors;
  TORCH_CHECK_VALUE(suffix == ".pt" || suffix == ".pth", "--weights=", path,
                    ": should end in .pt, .pth or .safetensors");
  return read_torch_file(path);
}

bool begins_with(const std::string& name, const std::string& beginning) {
  return name.compare(0, beginning.size(), beginning) == 0;
}

// Returns a checksum of the tensors in `dict` that the model has, and of their
// names, in the model's order.
uint32_t checksum(const StateDict& dict, const StateDict& of_model) {
  uint32_t sum = 0;
  for (const std::string& name : of_model.keys()) {
    const at::Tensor* const found = dict.find(name);
    if (!found) continue;
    sum = data::checksum_of(*found, data::checksum_of(name, sum));
  }
  return sum;
}

}  // namespace

InitialWeights load_initial_weights(torch::nn::Sequential& model,
                                    const std::string& model_name,
                                    const std::string& path,
                                    const std::string& skip) {
  const std::vector<std::string> beginnings = split_list(skip);
  const auto is_skipped = [&](const std::string& name) {
    return std::any_of(beginnings.begin(), beginnings.end(),
                       [&](const std::string& each) {
                         return !each.empty() && begins_with(name, each);
                       });
  };
  const StateDict before = state_dict(*model);
  StateDict wanted;
  // Keeps names that torchvision does not have.
  const NameTable names = inverse(models::torchvision_names(model_name));
  for (const auto& item : rename(read(path), names)) {
    if (!is_skipped(item.key())) wanted.insert(item.key(), item.value());
  }
  const uint32_t sum = checksum(wanted, before);
  std::size_t skipped = 0;
  for (const auto& item : before) {
    if (!is_skipped(item.key())) continue;
    ++skipped;
    wanted.insert(item.key(), item.value().clone());
  }
  load_state_dict(*model, wanted);
  return {std::to_string(before.size() - skipped) + " of " +
              std::to_string(before.size()) + " tensors loaded from " + path,
          sum};
}

}  // namespace gpipe::train_program
