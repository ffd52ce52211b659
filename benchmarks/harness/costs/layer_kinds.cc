#include "benchmarks/harness/costs/layer_kinds.h"

#include <cstddef>
#include <map>
#include <set>
#include <sstream>

#include "benchmarks/harness/experiment/statistics.h"
#include "gpipe/base/text.h"
#include "gpipe/summary.h"

namespace gpipe::benchmarks {
namespace {

std::string text_of(const std::vector<TensorSummary>& tensors) {
  std::string text;
  for (const TensorSummary& tensor : tensors) text += " " + tensor.text();
  return text;
}

}  // namespace

std::vector<std::string> layer_kinds(const torch::nn::Sequential& model,
                                     const at::Tensor& input) {
  const Summary described = summary(model, input);
  std::vector<TensorSummary> incoming = {
      {true, input.sizes().vec(), input.scalar_type()}};
  std::vector<std::string> kinds;
  for (const auto& layer : *model) {
    const LayerSummary& each = described.layers[kinds.size()];
    std::ostringstream kind;
    if (kinds.empty()) kind << "first ";
    kind << *layer.ptr() << " of " << each.parameters << " parameters, "
         << each.bytes << " bytes";
    for (const std::string& name : each.stashes) kind << ", stashes " << name;
    for (const std::string& name : each.pops) kind << ", pops " << name;
    kind << ":" << text_of(incoming) << " to" << text_of(each.outputs);
    kinds.push_back(kind.str());
    incoming = each.outputs;
  }
  return kinds;
}

bool covers(const std::vector<std::string>& of_others,
            const std::vector<std::string>& kinds) {
  const std::set<std::string> known(of_others.begin(), of_others.end());
  for (const std::string& kind : kinds) {
    if (known.count(kind) == 0) return false;
  }
  return true;
}

std::vector<balancing::LayerTime> times_by_kind(
    const std::vector<std::string>& kinds,
    const std::vector<std::string>& timed,
    const std::vector<balancing::LayerTime>& times) {
  if (timed.size() != times.size()) {
    internal::refuse("there are ", times.size(), " times, but kinds of ",
                     timed.size(), " layers");
  }
  struct Times {
    std::vector<double> forward, backward;
  };
  std::map<std::string, Times> by_kind;
  for (std::size_t k = 0; k < timed.size(); ++k) {
    by_kind[timed[k]].forward.push_back(times[k].forward);
    by_kind[timed[k]].backward.push_back(times[k].backward);
  }
  std::vector<balancing::LayerTime> result;
  for (const std::string& kind : kinds) {
    const auto found = by_kind.find(kind);
    if (found == by_kind.end()) {
      internal::refuse("no layer was timed that is a ", kind);
    }
    result.push_back(
        {median(found->second.forward), median(found->second.backward)});
  }
  return result;
}

}  // namespace gpipe::benchmarks
