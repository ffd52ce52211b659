#include "models/exported/source_line.h"

#include <gtest/gtest.h>

namespace gpipe::exported {
namespace {

constexpr char kOwn[] =
    "File \"model.py\", line 12, in forward\n    return self.fc(x)";
constexpr char kInside[] =
    "File \"site-packages/torch/nn/modules/linear.py\", line 134, in forward\n"
    "    return F.linear(input, self.weight, self.bias)";

TEST(SourceLineTest, FramesInsidePyTorchAreLeftOut) {
  const std::string expected =
      "File \"model.py\", line 12, in forward: return self.fc(x)";
  EXPECT_EQ(source_line(kOwn), expected);
  EXPECT_EQ(source_line(std::string(kOwn) + "\n  " + kInside), expected);
  // torch.cond and other control flow run in generated code.
  EXPECT_EQ(source_line(std::string(kOwn) +
                        "\n  File \"<eval_with_key>.5\", line 9, in forward\n "
                        "   cond = torch.ops.higher_order.cond(l_args_0_)"),
            expected);
  EXPECT_EQ(source_line(kInside),
            "File \"site-packages/torch/nn/modules/linear.py\", line 134, in "
            "forward: return F.linear(input, self.weight, self.bias)");
  EXPECT_EQ(source_line(""), "");
  EXPECT_EQ(source_line("File \""), "File \"");
  EXPECT_EQ(source_line("File \"" + std::string(300, 'x')).size(), 203u);
}

TEST(SourceLineTest, TheInnermostModuleHasItsPath) {
  EXPECT_EQ(module_path("L__self__,,Net;L__self___fc,blocks.0.fc,nn.Linear"),
            "blocks.0.fc");
  EXPECT_EQ(module_path("a,,Net;b,fc@1,nn.Linear"), "fc");
  EXPECT_EQ(module_path("a,,Net"), "");
  EXPECT_EQ(module_path(""), "");
  EXPECT_EQ(module_path("a"), "");
}

}  // namespace
}  // namespace gpipe::exported
