#include "gpipe/runtime/cell/read_scalars.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <cstddef>
#include <unordered_map>

namespace gpipe::internal {

std::vector<double> read_scalars(const std::vector<at::Tensor>& scalars) {
  const c10::AutoGradMode no_graph(false);
  std::unordered_map<c10::Device, std::vector<std::size_t>> on_device;
  for (std::size_t k = 0; k < scalars.size(); ++k) {
    on_device[scalars[k].device()].push_back(k);
  }
  std::vector<double> values(scalars.size());
  for (const auto& [device, places] : on_device) {
    std::vector<at::Tensor> there;
    // A double holds the values of all these dtypes.
    for (const std::size_t k : places) {
      there.push_back(scalars[k].detach().reshape({}).to(at::kDouble));
    }
    const at::Tensor here = at::stack(there).cpu();
    for (std::size_t n = 0; n < places.size(); ++n) {
      values[places[n]] = here.const_data_ptr<double>()[n];
    }
  }
  return values;
}

}  // namespace gpipe::internal
