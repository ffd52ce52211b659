// Parses arbitrary bytes as an adapter_config.json.
#include <c10/util/Exception.h>

#include "gpipe/testing/fuzz_check.h"
#include "models/weights/lora_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using gpipe::internal::lora_config_text;
  using gpipe::internal::LoraConfig;
  using gpipe::internal::parse_lora_config;
  gpipe::testing::fuzz_parser<c10::ValueError>(
      size, {},
      [&] { return parse_lora_config(gpipe::testing::fuzz_text(data, size)); },
      [](const LoraConfig& config) {
        const std::string written = lora_config_text(config);
        gpipe::testing::fuzz_check(
            lora_config_text(parse_lora_config(written)) == written,
            "what is written is read again");
      });
  return 0;
}
