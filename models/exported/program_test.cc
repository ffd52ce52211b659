#include "models/exported/program.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace gpipe::exported {
namespace {

TEST(SymbolsTest, AMultipleOfASymbolHasItsSymbol) {
  Symbols symbols;
  const Extent one =
      symbols.parse("Symbol('s77', positive=True, integer=True)");
  EXPECT_EQ(symbols.text(one), "s77");
  const Extent many = symbols.parse(
      "Mul(Integer(12), Symbol('s77', positive=True, integer=True))");
  EXPECT_EQ(many.symbol, one.symbol);
  EXPECT_EQ(many.factor, 12);
  EXPECT_EQ(symbols.text(many), "12*s77");
  // The form of range constraints.
  EXPECT_EQ(symbols.parse("s77").symbol, one.symbol);
  EXPECT_EQ(symbols.parse("2*s77").factor, 2);
  EXPECT_EQ(symbols.size(), 1);
}

TEST(SymbolsTest, TheLargestValueOfAMultipleIsAMultiple) {
  Symbols symbols;
  const Extent many = symbols.parse("2*s77");
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(symbols.largest(many), kMost);  // no limit
  symbols.range(many.symbol).most = 32;
  EXPECT_EQ(symbols.largest(many), 64);
  EXPECT_EQ(symbols.largest(symbols.parse("12")), 12);
}

TEST(SymbolsTest, OtherExpressionsAreSymbolsOfTheirOwn) {
  Symbols symbols;
  const std::string sum = "Add(Symbol('s0', integer=True), Integer(1))";
  const Extent a = symbols.parse(sum);
  EXPECT_EQ(a.factor, 1);
  EXPECT_EQ(symbols.parse(sum).symbol, a.symbol);
  EXPECT_NE(symbols.parse("s0").symbol, a.symbol);
  const std::string product =
      "Mul(Symbol('s0', integer=True), Symbol('s1', integer=True))";
  EXPECT_EQ(symbols.text(symbols.parse(product)), product);
  EXPECT_EQ(symbols.parse("Mul(Integer(-2), s0)").factor, 1);
  EXPECT_EQ(symbols.parse("12").symbol, Extent::kNone);
  EXPECT_EQ(symbols.parse("12").factor, 12);
  EXPECT_EQ(symbols.parse("").factor, 1);
  EXPECT_EQ(symbols.parse("Symbol('").factor, 1);
}

}  // namespace
}  // namespace gpipe::exported
