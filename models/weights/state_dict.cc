#include "models/weights/state_dict.h"

#include <ATen/Functions.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <sstream>
#include <unordered_set>
#include <utility>

#include "gpipe/base/text.h"

namespace gpipe {
namespace {

// Inserts the module's tensors themselves.
void collect(const torch::nn::Module& module, const std::string& prefix,
             StateDict& dict) {
  for (const auto& tensors : {module.named_parameters(/*recurse=*/false),
                              module.named_buffers(/*recurse=*/false)}) {
    for (const auto& item : tensors) {
      if (!item.value().defined()) continue;
      dict.insert(prefix + item.key(), item.value());
    }
  }
  for (const auto& child : module.named_children()) {
    collect(*child.value(), prefix + child.key() + ".", dict);
  }
}

// ---- Similar names

// Returns the candidate that is most similar to `name`, or null if none is
// close. A candidate that differs only by a prefix ("module.", "backbone.")
// comes first.
const std::string* nearest(const std::string& name,
                           const std::vector<std::string>& candidates) {
  const std::string* best = nullptr;
  std::size_t fewest = name.size() / 3 + 1;
  for (const std::string& each : candidates) {
    if (name.ends_with("." + each) || each.ends_with("." + name)) {
      return &each;
    }
    const std::size_t edits = edit_distance(name, each);
    if (edits < fewest) {
      fewest = edits;
      best = &each;
    }
  }
  return best;
}

// ---- Error texts

constexpr std::size_t kListed = 20;

// Writes the title and one line for each of the first kListed items.
template <typename Describe>
void list(std::ostream& to, const char* title,
          const std::vector<std::string>& items, const Describe& describe) {
  if (items.empty()) return;
  to << "\n"
     << items.size() << " " << title << ":"
     << first_lines(items, kListed, describe);
}

// Returns how many finite elements a conversion of `tensor` has changed to an
// infinity, to NaN, (as LibTorch 2.15 does for Float8_e4m3fn) to the largest
// number, or to one of another sign: Float8_e8m0fnu has powers of two only.
int64_t num_beyond_range(const at::Tensor& tensor,
                         const at::Tensor& converted) {
  // LibTorch has few operators for dtypes of 8 bits.
  const auto wide = [](const at::Tensor& each) {
    return each.element_size() == 1 ? each.to(at::kFloat) : each;
  };
  const at::Tensor from = wide(tensor), to = wide(converted);
  at::Tensor beyond = to.isfinite().logical_not_();
  constexpr float kLarge = std::numeric_limits<float>::max();
  const at::Tensor largest =
      wide(at::full({}, kLarge, at::kFloat).to(converted.scalar_type()));
  if (const auto limit = largest.item<double>(); limit < kLarge) {
    // Up to half a step above the largest number rounds to it.
    constexpr double kRounding = 1.0 / 28;
    beyond.logical_or_(from.abs() > limit * (1 + kRounding));
  }
  if (converted.scalar_type() == at::kFloat8_e8m0fnu) {
    beyond.logical_or_(from <= 0);
  }
  return beyond.logical_and_(from.isfinite()).sum().item<int64_t>();
}

// Returns whether several elements share memory, as those of an expanded tensor
// do. No operator writes to these.
bool is_expanded(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided &&
         at::has_internal_overlap(tensor) == at::MemOverlap::Yes;
}

// What is done with the module's tensors: nothing, or the values of a dict are
// copied into them, or into tensors that share their memory.
enum class Use { kCompare, kLoad, kLoadShared };

// Returns why `from` cannot be copied into `to`, or "" if it can. `to` without
// memory can be compared, but not be loaded.
std::string mismatch(const at::Tensor& from, const at::Tensor& to, Use use) {
  std::ostringstream text;
  if (!from.defined()) {
    text << "is undefined in the dict";
  } else if (from.is_meta() && !to.is_meta()) {
    text << "is on the meta device in the dict, and so has no values";
  } else if (use != Use::kCompare && to.is_meta() && !from.is_meta()) {
    text << "is on the meta device in the module, and so has no memory for "
            "values";
  } else if (is_expanded(to)) {
    text << "is expanded in the module: several of its elements share memory, "
            "and cannot be written; register a clone() of it";
  } else if (from.sizes() != to.sizes()) {
    text << "is " << from.sizes() << " in the dict, but " << to.sizes()
         << " in the module";
  } else if (from.scalar_type() != to.scalar_type() &&
             !(from.is_floating_point() && to.is_floating_point())) {
    text << "is " << from.scalar_type() << " in the dict, but "
         << to.scalar_type() << " in the module";
  } else if (from.layout() != to.layout()) {
    text << "is " << from.layout() << " in the dict, but " << to.layout()
         << " in the module";
  } else if (use == Use::kLoadShared &&
             (to.layout() == at::kSparse || to.is_quantized())) {
    text << "is " << (to.is_quantized() ? "quantized" : "sparse")
         << ", which a tensor that shares its memory cannot change; load into "
            "the module";
  } else if (to.layout() != at::kSparse &&
             internal::elements_of(from).sizes() !=
                 internal::elements_of(to).sizes()) {
    text << "has values " << internal::elements_of(from).sizes()
         << " in the dict, but " << internal::elements_of(to).sizes()
         << " in the module";
  } else if (!from.is_meta() && !to.is_meta() && to.is_floating_point() &&
             internal::may_narrow(from.scalar_type(), to.scalar_type())) {
    const at::Tensor elements = internal::elements_of(from);
    const int64_t count =
        num_beyond_range(elements, elements.to(to.scalar_type()));
    if (count > 0) {
      text << "has " << count << " of " << from.numel()
           << " elements beyond the range of " << to.scalar_type()
           << ", the dtype in the module";
    }
  }
  return std::move(text).str();
}

struct Comparison {
  LoadReport names;
  std::vector<std::string> misfits;  // for example "'fc.weight' is ..."
  bool other_shapes = false;         // whether some of these differ in shape

  std::string text() const {
    std::ostringstream text;
    list(text, "of another shape or kind", misfits, std::identity());
    if (other_shapes) {
      text
          << "\n  (LoadOptions().skip_mismatched(true) leaves out other "
             "shapes; HuggingFaceOptions().skip() and --weights_skip leave out "
             "tensors by name)";
    }
    list(text, "missing (in the module, not in the dict)", names.missing,
         [](const std::string& name) { return "'" + name + "'"; });
    list(text, "unexpected (in the dict, not in the module)", names.unexpected,
         [this](const std::string& name) {
           const std::string* near = nearest(name, names.missing);
           return "'" + name + "'" +
                  (near ? " (is it '" + *near + "'?)" : std::string());
         });
    return std::move(text).str();
  }
};

Comparison compare(const StateDict& dict, const StateDict& own,
                   bool skip_mismatched, Use use) {
  Comparison result;
  for (const auto& item : own) {
    const at::Tensor* from = dict.find(item.key());
    if (!from) {
      result.names.missing.push_back(item.key());
      continue;
    }
    if (skip_mismatched && from->defined() &&
        from->sizes() != item.value().sizes()) {
      result.names.mismatched.push_back(item.key());
      continue;
    }
    const std::string text = mismatch(*from, item.value(), use);
    if (!text.empty()) {
      result.other_shapes |=
          from->defined() && from->sizes() != item.value().sizes();
      result.misfits.push_back("'" + item.key() + "' " + text);
    }
  }
  for (const auto& item : dict) {
    if (!own.contains(item.key())) {
      result.names.unexpected.push_back(item.key());
    }
  }
  return result;
}

LoadReport check(const StateDict& own, const StateDict& dict,
                 const LoadOptions& options, Use use) {
  Comparison comparison = compare(dict, own, options.skip_mismatched(), use);
  const LoadReport& names = comparison.names;
  TORCH_CHECK_VALUE(
      comparison.misfits.empty() &&
          (!options.strict() ||
           (names.missing.empty() && names.unexpected.empty())),
      "the state dict does not fit the module; nothing was loaded.",
      comparison.text());
  TORCH_CHECK_VALUE(own.is_empty() || names.missing.size() < own.size(),
                    "the state dict has none of the module's ", own.size(),
                    " tensors; nothing was loaded, also without strict.",
                    comparison.text());
  return std::move(comparison.names);
}

LoadReport load(const StateDict& own, const StateDict& dict,
                const LoadOptions& options, Use use) {
  LoadReport names = check(own, dict, options, use);
  const std::unordered_set<std::string> skipped(names.mismatched.begin(),
                                                names.mismatched.end());
  const at::NoGradGuard no_grad;
  for (const auto& item : own) {
    const at::Tensor* from = dict.find(item.key());
    if (from && skipped.count(item.key()) == 0) item.value().copy_(*from);
  }
  return names;
}

}  // namespace

StateDict state_dict(const torch::nn::Module& module) {
  StateDict dict;
  collect(module, "", dict);
  for (auto& item : dict) item.value() = item.value().detach();
  return dict;
}

LoadReport check_state_dict(const StateDict& own, const StateDict& dict,
                            const LoadOptions& options) {
  return check(own, dict, options, Use::kCompare);
}

LoadReport load_state_dict(torch::nn::Module& module, const StateDict& dict,
                           const LoadOptions& options) {
  StateDict own;
  collect(module, "", own);
  return load(own, dict, options, Use::kLoad);
}

LoadReport load_state_dict(const StateDict& own, const StateDict& dict,
                           const LoadOptions& options) {
  return load(own, dict, options, Use::kLoadShared);
}

namespace internal {

at::Tensor elements_of(const at::Tensor& tensor) {
  switch (tensor.layout()) {
    case at::kSparse:
      return tensor._values();
    case at::kSparseCsr:
    case at::kSparseCsc:
    case at::kSparseBsr:
    case at::kSparseBsc:
      return tensor.values();
    default:
      return tensor;
  }
}

bool may_narrow(at::ScalarType from, at::ScalarType to) {
  // Float8_e8m0fnu has the range of float.
  const bool widens = c10::elementSize(from) < c10::elementSize(to) &&
                      from != at::kFloat8_e8m0fnu;
  return from != to && !widens;
}

at::Tensor convert_in_range(const std::string& name, const at::Tensor& tensor,
                            at::ScalarType dtype) {
  at::Tensor converted = tensor.to(dtype);
  const bool checks =
      !tensor.is_meta() && may_narrow(tensor.scalar_type(), dtype);
  const int64_t count = checks ? num_beyond_range(tensor, converted) : 0;
  TORCH_CHECK_VALUE(count == 0, in_quotes(name), ": ", count, " of ",
                    tensor.numel(), " elements are beyond the range of ", dtype,
                    ", and would become infinite, NaN or another number; take "
                    "a dtype with a larger range, such as bfloat16 or float32, "
                    "or change these values first");
  return converted;
}

}  // namespace internal

}  // namespace gpipe
