#include "training/program/initial_weights.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <system_error>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"
#include "models/weights/formats.h"
#include "models/weights/hugging_face.h"
#include "models/weights/names.h"
#include "models/weights/safetensors.h"
#include "models/weights/state_dict.h"
#include "models/weights/torch_file.h"
#include "training/data/checksum.h"

namespace gpipe::train_program {
namespace {

bool begins_with(const std::string& name, const std::string& beginning) {
  return name.compare(0, beginning.size(), beginning) == 0;
}

// The tensors of a model by name, and the function that sets them.
struct NamedTensors {
  StateDict dict;
  std::function<void(const StateDict&)> load;
};

// Returns the model's tensors under the names that `given` uses.
NamedTensors named_tensors(torch::nn::Sequential& model,
                           ExportedModel* exported, const StateDict& given) {
  NamedTensors own{state_dict(*model), [&model](const StateDict& dict) {
                     load_state_dict(*model, dict);
                   }};
  if (!exported) return own;
  NamedTensors python{
      exported->state_dict(),
      [exported](const StateDict& dict) { exported->load_state_dict(dict); }};
  const bool is_own =
      std::any_of(given.begin(), given.end(), [&](const auto& item) {
        return own.dict.contains(item.key()) &&
               !python.dict.contains(item.key());
      });
  return is_own ? own : python;
}

// Returns the tensors of `dict` that the model has, in the model's order.
StateDict in_order_of(const StateDict& of_model, const StateDict& dict) {
  StateDict found;
  for (const std::string& name : of_model.keys()) {
    if (const at::Tensor* each = dict.find(name)) found.insert(name, *each);
  }
  return found;
}

uint32_t checksum_of(const StateDict& dict) {
  uint32_t sum = 0;
  for (const auto& item : dict) {
    sum = data::checksum_of(item.value(), data::checksum_of(item.key(), sum));
  }
  return sum;
}

// Copies those of `tensors`, which are of the whole model, that `part` has into
// it.
void load_part(ExportedModel& part, const StateDict& tensors) {
  const NamedTensors own = named_tensors(part.layers, &part, tensors);
  StateDict wanted;
  for (const auto& item : own.dict) {
    const at::Tensor* found = tensors.find(item.key());
    wanted.insert(item.key(), found ? *found : item.value().clone());
  }
  own.load(wanted);
}

bool is_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

void check_not_all_skipped(std::size_t skipped, std::size_t all,
                           const std::string& skip, const std::string& path) {
  TORCH_CHECK_VALUE(skipped < all, "--weights_skip=", skip, ": all ", all,
                    " tensors of the model are skipped, so that nothing of ",
                    path, " would be loaded");
}

std::string line_of(std::size_t loaded, std::size_t all,
                    const std::string& path) {
  return std::to_string(loaded) + " of " + std::to_string(all) +
         " tensors loaded from " + path;
}

// Throws if the weights of a folder have changed a dtype.
void check_dtypes(const StateDict& before, const StateDict& after,
                  const std::string& path) {
  for (const auto& item : after) {
    const auto dtype = before[item.key()].scalar_type();
    TORCH_CHECK_VALUE(
        item.value().scalar_type() == dtype, "--weights=", path, ": '",
        item.key(), "' is ", item.value().scalar_type(),
        ", but --model was exported in ", dtype,
        "; convert with --weights_dtype=", internal::find_dtype(dtype)->python,
        ", or export the model in ", item.value().scalar_type());
  }
}

// Loads a folder of transformers into an exported program.
InitialWeights load_folder(ExportedModel& model, const std::string& path,
                           const std::string& skip, const std::string& dtype) {
  HuggingFaceOptions options;
  for (const std::string& each : split_list(skip)) {
    if (!each.empty()) options.skip().push_back(each);
  }
  if (!dtype.empty()) {
    const auto* found =
        internal::find_dtype(&internal::DtypeNames::python, dtype);
    TORCH_CHECK_VALUE(found && c10::isFloatingType(found->dtype),
                      "--weights_dtype=", dtype,
                      ": must be float32, bfloat16, float16 or float64");
    options.dtype(found->dtype);
  }
  const StateDict before = model.state_dict();
  std::size_t skipped = 0;
  for (const std::string& name : before.keys()) {
    skipped += std::any_of(
        options.skip().begin(), options.skip().end(),
        [&](const std::string& each) { return begins_with(name, each); });
  }
  check_not_all_skipped(skipped, before.size(), skip, path);
  load_hugging_face(path, model, options);
  check_dtypes(before, model.state_dict(), path);
  return {line_of(before.size() - skipped, before.size(), path),
          hugging_face_checksum(path),
          [path, options](ExportedModel& part) {
            load_hugging_face(path, part, options);
          },
          /*sets_all=*/skipped == 0};
}

}  // namespace

StateDict read_named_tensors(const std::string& flag, const std::string& path,
                             const std::string& entry) {
  const std::string suffix = std::filesystem::path(path).extension().string();
  const bool is_torch = suffix == ".pt" || suffix == ".pth";
  TORCH_CHECK_VALUE(is_torch || suffix == ".safetensors", flag, "=", path,
                    ": should end in .pt, .pth or .safetensors");
  TORCH_CHECK_VALUE(is_torch || entry.empty(), flag, "_entry=", entry, ": ",
                    path, " is a .safetensors file, which has no entries");
  return is_torch ? read_torch_file(path, entry)
                  : read_safetensors(path).tensors;
}

InitialWeights load_initial_weights(torch::nn::Sequential& model,
                                    ModelSource& source,
                                    const std::string& path,
                                    const std::string& skip,
                                    const std::string& entry,
                                    const std::string& dtype) {
  const bool of_folder = is_folder(path);
  TORCH_CHECK_VALUE(!of_folder || entry.empty(), "--weights_entry=", entry,
                    ": ", path, " is a folder, which has no entries");
  TORCH_CHECK_VALUE(dtype.empty() || (of_folder && source.exported()),
                    "--weights_dtype=", dtype,
                    ": is for a folder of transformers and a .pt2 file; other "
                    "weights are converted to the dtypes of the model");
  if (of_folder && source.exported()) {
    return load_folder(*source.exported(), path, skip, dtype);
  }
  const std::vector<std::string> beginnings = split_list(skip);
  const auto is_skipped = [&](const std::string& name) {
    return std::any_of(beginnings.begin(), beginnings.end(),
                       [&](const std::string& each) {
                         return !each.empty() && begins_with(name, each);
                       });
  };
  // Keeps names that torchvision does not have.
  const StateDict given =
      rename(of_folder ? read_hugging_face(path)
                       : read_named_tensors("--weights", path, entry),
             inverse(source.torchvision_names()));
  const NamedTensors tensors = named_tensors(model, source.exported(), given);
  const StateDict& before = tensors.dict;
  StateDict wanted;
  for (const auto& item : given) {
    if (!is_skipped(item.key())) wanted.insert(item.key(), item.value());
  }
  StateDict loaded = in_order_of(before, wanted);
  const uint32_t sum = checksum_of(loaded);
  std::size_t skipped = 0;
  for (const auto& item : before) {
    if (!is_skipped(item.key())) continue;
    ++skipped;
    wanted.insert(item.key(), item.value().clone());
  }
  check_not_all_skipped(skipped, before.size(), skip, path);
  tensors.load(wanted);
  return {line_of(before.size() - skipped, before.size(), path), sum,
          [loaded = std::move(loaded)](ExportedModel& part) {
            load_part(part, loaded);
          }};
}

}  // namespace gpipe::train_program
