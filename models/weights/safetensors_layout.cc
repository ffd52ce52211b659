#include "models/weights/safetensors_layout.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "models/weights/in_quotes.h"

namespace gpipe::internal {
namespace {

void check_can_be_written(const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), in_quotes(name), " is undefined");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided && !tensor.is_quantized(),
                    in_quotes(name), " is a ", tensor.toString(),
                    "; only plain tensors can be written");
  TORCH_CHECK_VALUE(!tensor.is_meta(), in_quotes(name),
                    " is on the meta device, and so has no values");
}

}  // namespace

SafetensorsLayout lay_out(const StateDict& tensors,
                          const std::map<std::string, std::string>& metadata) {
  SafetensorsLayout layout;
  SafetensorsHeader& header = layout.header;
  header.metadata = metadata;
  for (const auto& item : tensors) {
    check_can_be_written(item.key(), item.value());
    SafetensorsEntry entry;
    entry.name = item.key();
    entry.dtype = item.value().scalar_type();
    entry.sizes = item.value().sizes().vec();
    header.entries.push_back(std::move(entry));
  }

  layout.order.resize(header.entries.size());
  std::iota(layout.order.begin(), layout.order.end(), std::size_t{0});
  std::stable_sort(layout.order.begin(), layout.order.end(),
                   [&](auto a, auto b) {
                     return c10::elementSize(header.entries[a].dtype) >
                            c10::elementSize(header.entries[b].dtype);
                   });
  uint64_t end = 0;
  for (const std::size_t k : layout.order) {
    header.entries[k].begin = end;
    end += tensors[k].value().nbytes();
    header.entries[k].end = end;
  }

  const std::string json = safetensors_header_text(header);
  for (std::size_t k = 0; k < kSafetensorsLengthBytes; ++k) {
    layout.start.push_back(static_cast<char>(uint64_t{json.size()} >> (8 * k)));
  }
  layout.start += json;
  return layout;
}

void write_laid_out(AtomicFile& file, const StateDict& tensors,
                    const SafetensorsLayout& layout) {
  file.write(layout.start.data(), layout.start.size());
  for (const std::size_t k : layout.order) {
    const at::Tensor tensor = as_written(tensors[k].value());
    file.write(tensor.const_data_ptr(), tensor.nbytes());
  }
}

at::Tensor as_written(const at::Tensor& tensor) {
  // Without an operator, a process may exit meanwhile (gpipe/base/threads).
  if (tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() &&
      !tensor.is_neg()) {
    return tensor;
  }
  return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
}

}  // namespace gpipe::internal
