#include "models/weights/lora_config.h"

#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <array>
#include <cmath>

#include "gpipe/base/json.h"

namespace gpipe::internal {
namespace {

// Fields of PEFT that change an adapter, and that LoraOptions does not have.
// They must be absent or empty.
constexpr std::array kUnsupported = {"alora_invocation_tokens",
                                     "alpha_pattern",
                                     "arrow_config",
                                     "exclude_modules",
                                     "kasa_config",
                                     "layer_replication",
                                     "layers_pattern",
                                     "layers_to_transform",
                                     "lora_bias",
                                     "modules_to_save",
                                     "monteclora_config",
                                     "rank_pattern",
                                     "target_parameters",
                                     "trainable_token_indices",
                                     "use_bdlora",
                                     "use_dora",
                                     "use_qalora",
                                     "velora_config"};

bool is_empty(const Json& json) {
  return json.is_null() || json == false ||
         (json.is_structured() && json.empty());
}

double number(const Json& json, const char* name) {
  const Json& value = field(json, name);
  TORCH_CHECK_VALUE(value.is_number(), "'", name, "' is not a number");
  return value.get<double>();
}

bool flag(const Json& json, const char* name) {
  const Json* const value = find_field(json, name);
  return value && boolean(*value);
}

LoraConfig read_config(const Json& json) {
  const std::string& type = text(field(json, "peft_type"));
  TORCH_CHECK_VALUE(type == "LORA", "is an adapter of the type '", type,
                    "'; only LORA can be read");
  std::vector<std::string> unsupported;
  for (const char* each : kUnsupported) {
    const Json* const value = find_field(json, each);
    if (value && !is_empty(*value)) unsupported.push_back(each);
  }
  const Json* const bias = find_field(json, "bias");
  if (bias && text(*bias) != "none") unsupported.push_back("bias");
  // Other ways change the base weights.
  const Json* const init = find_field(json, "init_lora_weights");
  if (init && !init->is_boolean() && *init != "gaussian" && *init != "eva" &&
      *init != "orthogonal") {
    unsupported.push_back("init_lora_weights");
  }
  TORCH_CHECK_VALUE(
      unsupported.empty(), "asks for what gpipe's adapters do not have: ",
      absl::StrJoin(unsupported, ", "), "; train the adapter without it");
  LoraOptions options;
  options.rank(integer(field(json, "r")))
      .alpha(number(json, "lora_alpha"))
      .rank_stabilized(flag(json, "use_rslora"));
  if (find_field(json, "lora_dropout")) {
    options.dropout(number(json, "lora_dropout"));
  }
  TORCH_CHECK_VALUE(options.rank() > 0, "has the rank ", options.rank(),
                    ", which must be at least 1");
  TORCH_CHECK_VALUE(std::isfinite(options.alpha()), "has the lora_alpha ",
                    options.alpha(), ", which must be finite");
  TORCH_CHECK_VALUE(options.dropout() >= 0 && options.dropout() < 1,
                    "has the lora_dropout ", options.dropout(),
                    ", which must be from 0 to below 1");
  const Json& targets = field(json, "target_modules");
  TORCH_CHECK_VALUE(targets.is_array(),
                    "has a pattern as target_modules; a list of names is "
                    "needed");
  for (const Json& each : targets) {
    options.targets().push_back(text(each));
  }
  TORCH_CHECK_VALUE(!options.targets().empty(), "has no target_modules");
  return {options, flag(json, "fan_in_fan_out")};
}

}  // namespace

LoraConfig parse_lora_config(std::string_view text) {
  return read_json(text, "record 'adapter_config.json' ", {}, read_config);
}

std::string lora_config_text(const LoraConfig& config) {
  const LoraOptions& options = config.options;
  nlohmann::json json = {{"peft_type", "LORA"},
                         {"task_type", nullptr},
                         {"base_model_name_or_path", nullptr},
                         {"inference_mode", true},
                         {"r", options.rank()},
                         {"lora_alpha", options.alpha()},
                         {"lora_dropout", options.dropout()},
                         {"use_rslora", options.rank_stabilized()},
                         {"use_dora", false},
                         {"target_modules", options.targets()},
                         {"modules_to_save", nullptr},
                         {"bias", "none"},
                         {"fan_in_fan_out", config.fan_in_fan_out},
                         {"init_lora_weights", true}};
  // PEFT declares alpha as a whole number.
  if (std::trunc(options.alpha()) == options.alpha() &&
      std::abs(options.alpha()) < 1e15) {
    json["lora_alpha"] = static_cast<int64_t>(options.alpha());
  }
  try {
    return json.dump(2) + "\n";
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, "a target is not UTF-8: ", error.what());
  }
}

}  // namespace gpipe::internal
