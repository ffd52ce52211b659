#include "models/exported/region_reader.h"

#include <c10/util/Exception.h>

#include <string_view>

#include "models/exported/schema_numbers.h"

namespace gpipe::exported {
namespace {

constexpr std::string_view kHigherOrder = "torch.ops.higher_order.",
                           kNoGradRegion = "wrap_with_set_grad_enabled",
                           kAutocastRegion = "wrap_with_autocast",
                           kCheckpointRegion = "tag_activation_checkpoint";

Autocast read_autocast(const Json& dtype, const Json& enabled,
                       const Json& cache) {
  Autocast autocast;
  if (alternative(dtype).name == "as_scalar_type") {
    autocast.dtype = dtype_of(integer(alternative(dtype).value));
  }
  autocast.enabled = boolean(field(enabled, "as_bool"));
  if (alternative(cache).name == "as_bool") {
    autocast.cache = boolean(alternative(cache).value);
  }
  return autocast;
}

}  // namespace

bool is_higher_order(const std::string& target) {
  return target.starts_with(kHigherOrder);
}

std::optional<Control> find_control(const std::string& target) {
  const std::string_view name =
      std::string_view(target).substr(kHigherOrder.size());
  if (name == "cond") return Control::kCond;
  if (name == "while_loop") return Control::kWhile;
  if (name == "scan") return Control::kScan;
  if (name == "map_impl") return Control::kMap;
  return std::nullopt;
}

std::optional<RegionCall> read_region(const Json& json,
                                      const std::string& target,
                                      const Region& outer) {
  const std::string_view kind =
      std::string_view(target).substr(kHigherOrder.size());
  if (kind != kNoGradRegion && kind != kAutocastRegion &&
      kind != kCheckpointRegion) {
    return std::nullopt;
  }
  const Json& inputs = list(field(json, "inputs"));
  std::size_t at = 0;  // the graph's place among the arguments
  const auto argument = [&](std::size_t k) -> const Json& {
    TORCH_CHECK_VALUE(k < inputs.size(), "has only ", inputs.size(),
                      " arguments; the file is damaged");
    return field(inputs[k], "arg");
  };
  while (alternative(argument(at)).name != "as_graph") ++at;
  Region region = outer;
  if (kind == kNoGradRegion) {
    region.no_grad |= !boolean(field(argument(0), "as_bool"));
  } else if (kind == kAutocastRegion) {
    region.autocast = read_autocast(argument(1), argument(2), argument(3));
  }
  return RegionCall{region, field(field(argument(at), "as_graph"), "graph"),
                    inputs, at + 1};
}

}  // namespace gpipe::exported
