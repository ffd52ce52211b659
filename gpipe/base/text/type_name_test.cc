#include "gpipe/base/text/type_name.h"

#include <gtest/gtest.h>

namespace gpipe {
namespace {

TEST(ModuleTypeName, IsThatOfTheHolder) {
  EXPECT_EQ(module_type_name("torch::nn::Conv2dImpl"), "Conv2d");
  EXPECT_EQ(module_type_name("ns::CellImpl<std::vector<int>>"), "Cell");
  EXPECT_EQ(module_type_name("Plain"), "Plain");
  EXPECT_EQ(module_type_name("ns::Impl"), "Impl");
}

}  // namespace
}  // namespace gpipe
