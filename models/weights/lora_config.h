// The JSON of adapter_config.json.
#pragma once

#include <string>
#include <string_view>

#include "models/lora_options.h"

namespace gpipe::internal {

struct LoraConfig {
  LoraOptions options;
  bool fan_in_fan_out = false;  // base weights have the size [inputs, outputs]
};

// Returns the options in the text of an adapter_config.json. Throws
// c10::ValueError if the text is damaged, or asks for more than LoraOptions
// has. Thread-safe.
LoraConfig parse_lora_config(std::string_view text);

// Returns the text that PEFT reads.
std::string lora_config_text(const LoraConfig& config);

}  // namespace gpipe::internal
