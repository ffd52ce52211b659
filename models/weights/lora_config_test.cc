#include "models/weights/lora_config.h"

#include <gtest/gtest.h>

#include "models/testing/files.h"

namespace gpipe::internal {
namespace {

using testing::value_error_of;

// Returns the text of a configuration with more fields.
std::string config(const std::string& more = "") {
  return R"({"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules": )"
         R"(["q_proj", "v_proj"])" +
         more + "}";
}

TEST(LoraConfig, AWrittenOneIsReadAgain) {
  for (const double alpha : {16.0, 0.3}) {
    const LoraOptions options = LoraOptions()
                                    .rank(5)
                                    .alpha(alpha)
                                    .dropout(0.125)
                                    .rank_stabilized(true)
                                    .targets({"a", "b.c"});
    const LoraConfig read =
        parse_lora_config(lora_config_text({options, /*fan_in_fan_out=*/true}));
    EXPECT_TRUE(read.fan_in_fan_out);
    const LoraOptions& again = read.options;
    EXPECT_EQ(again.rank(), 5);
    EXPECT_EQ(again.alpha(), alpha);
    EXPECT_EQ(again.dropout(), 0.125);
    EXPECT_TRUE(again.rank_stabilized());
    EXPECT_EQ(again.targets(), options.targets());
  }
}

TEST(LoraConfig, FieldsHavePeftsDefaults) {
  const LoraOptions options = parse_lora_config(config()).options;
  EXPECT_EQ(options.rank(), 4);
  EXPECT_EQ(options.alpha(), 6);
  EXPECT_EQ(options.dropout(), 0);
  EXPECT_FALSE(options.rank_stabilized());
}

TEST(LoraConfig, WhatIsNotSupportedIsNamed) {
  const auto error = [](const std::string& more) {
    return value_error_of([&] { parse_lora_config(config(more)); });
  };
  EXPECT_EQ(error(R"(, "use_dora": true, "rank_pattern": {"q_proj": 2},
                     "bias": "all", "modules_to_save": [])"),
            "asks for what gpipe's adapters do not have: rank_pattern, "
            "use_dora, bias; train the adapter without it");
  EXPECT_EQ(error(R"(, "init_lora_weights": "pissa")"),
            "asks for what gpipe's adapters do not have: init_lora_weights; "
            "train the adapter without it");
  EXPECT_EQ(error(R"(, "use_dora": false, "init_lora_weights": false)"),
            "no error");
}

TEST(LoraConfig, DamageIsNamed) {
  const auto error = [](const std::string& text) {
    return value_error_of([&] { parse_lora_config(text); });
  };
  EXPECT_NE(error("{").find("'adapter_config.json' is not JSON"),
            std::string::npos);
  EXPECT_EQ(error("[]"),
            "expected an object, but found a list of 0 entries; the file is "
            "damaged");
  EXPECT_EQ(error(R"({"peft_type": "IA3"})"),
            "is an adapter of the type 'IA3'; only LORA can be read");
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = config();
    return error(text.replace(text.find(from), from.size(), to));
  };
  EXPECT_EQ(changed("4", "0"), "has the rank 0, which must be at least 1");
  EXPECT_EQ(changed("6", "\"6\""), "'lora_alpha' is not a number");
  EXPECT_EQ(changed(R"(["q_proj", "v_proj"])", "\"all-linear\""),
            "has a pattern as target_modules; a list of names is needed");
  EXPECT_EQ(changed(R"(["q_proj", "v_proj"])", "[]"), "has no target_modules");
  EXPECT_NE(changed("\"r\"", "\"s\"").find("'r' is missing"),
            std::string::npos);
  EXPECT_EQ(error(config(R"(, "lora_dropout": 1.0)")),
            "has the lora_dropout 1, which must be from 0 to below 1");
}

}  // namespace
}  // namespace gpipe::internal
