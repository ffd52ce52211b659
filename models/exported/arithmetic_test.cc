#include "models/exported/arithmetic.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace gpipe::exported {
namespace {

c10::IValue compute(const std::string& target, const c10::IValue& a,
                    const c10::IValue& b = int64_t{0}) {
  return find_operation(target)->compute(a, b);
}

TEST(ArithmeticTest, IntegersStayIntegers) {
  EXPECT_EQ(compute("_operator.mul", 6, 7).toInt(), 42);
  EXPECT_EQ(compute("_operator.pow", 2, 62).toInt(), int64_t{1} << 62);
  EXPECT_EQ(compute("_operator.pow", 2, -1).toDouble(), 0.5);
  EXPECT_EQ(compute("_operator.truediv", 7, 2).toDouble(), 3.5);
  EXPECT_EQ(compute("torch.sym_float", 3).toDouble(), 3.0);
  EXPECT_EQ(compute("torch.sym_max", 3, 5).toInt(), 5);
  EXPECT_EQ(compute("_operator.add", true, 1).toInt(), 2);
}

TEST(ArithmeticTest, DivisionsRoundDownAsInPython) {
  const int64_t expected[][4] = {
      {7, 2, 3, 1}, {-7, 2, -4, 1}, {7, -2, -4, -1}, {-7, -2, 3, -1}};
  for (const auto& [a, b, quotient, rest] : expected) {
    EXPECT_EQ(compute("_operator.floordiv", a, b).toInt(), quotient);
    EXPECT_EQ(compute("_operator.mod", a, b).toInt(), rest);
    EXPECT_EQ(compute("_operator.mod", double(a), b).toDouble(), rest);
  }
  EXPECT_EQ(compute("math.ceil", 2.25).toInt(), 3);
  EXPECT_EQ(compute("math.floor", -2.25).toInt(), -3);
  EXPECT_EQ(compute("torch.sym_int", -2.75).toInt(), -2);
}

TEST(ArithmeticTest, ComparisonsGiveTruthValues) {
  EXPECT_TRUE(compute("_operator.ge", 2, 2.0).toBool());
  EXPECT_FALSE(compute("_operator.lt", 2, 2).toBool());
  EXPECT_TRUE(compute("torch.sym_not", false).toBool());
  EXPECT_FALSE(compute("_operator.and_", true, false).toBool());
}

TEST(ArithmeticTest, WhatHasNoResultThrows) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  const int64_t least = std::numeric_limits<int64_t>::min();
  EXPECT_THROW(compute("_operator.floordiv", 1, 0), c10::ValueError);
  EXPECT_THROW(compute("_operator.mod", 1, 0), c10::ValueError);
  EXPECT_THROW(compute("_operator.truediv", 1, 0), c10::ValueError);
  EXPECT_THROW(compute("_operator.mul", most, 2), c10::ValueError);
  EXPECT_THROW(compute("_operator.floordiv", least, -1), c10::ValueError);
  EXPECT_EQ(compute("_operator.mod", least, -1).toInt(), 0);
  EXPECT_THROW(compute("torch.sym_int", 1e300), c10::ValueError);
  EXPECT_FALSE(find_operation("_operator.matmul"));
}

}  // namespace
}  // namespace gpipe::exported
