#include "models/exported/arithmetic.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <unordered_map>

namespace gpipe::exported {
namespace {

using c10::IValue;

bool both_integers(const IValue& a, const IValue& b) {
  return !a.isDouble() && !b.isDouble();
}

int64_t whole(const IValue& value) {
  TORCH_CHECK_VALUE(value.isInt() || value.isBool(),
                    "expected an integer, but ", "found a ", value.tagKind());
  return value.isBool() ? int64_t(value.toBool()) : value.toInt();
}

double real(const IValue& value) {
  return value.isDouble() ? value.toDouble()
                          : static_cast<double>(whole(value));
}

// Checks the result of an operation on integers.
int64_t checked(bool overflows, int64_t result) {
  TORCH_CHECK_VALUE(!overflows,
                    "an integer computed from sizes does not fit into 64 bits");
  return result;
}

int64_t add(int64_t a, int64_t b) {
  int64_t result = 0;
  return checked(__builtin_add_overflow(a, b, &result), result);
}
int64_t subtract(int64_t a, int64_t b) {
  int64_t result = 0;
  return checked(__builtin_sub_overflow(a, b, &result), result);
}
int64_t multiply(int64_t a, int64_t b) {
  int64_t result = 0;
  return checked(__builtin_mul_overflow(a, b, &result), result);
}

void check_divisor(bool is_zero) {
  TORCH_CHECK_VALUE(!is_zero, "a division by zero in a computation of sizes");
}

int64_t floor_divide(int64_t a, int64_t b) {
  check_divisor(b == 0);
  if (b == -1) return subtract(0, a);
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0));
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = multiply(result, base);
    if (exponent > 1) base = multiply(base, base);
  }
  return result;
}

IValue python_power(const IValue& a, const IValue& b) {
  if (both_integers(a, b) && whole(b) >= 0) return power(whole(a), whole(b));
  return std::pow(real(a), real(b));
}

IValue python_modulo(const IValue& a, const IValue& b) {
  if (both_integers(a, b)) {
    const int64_t divisor = whole(b);
    check_divisor(divisor == 0);
    if (divisor == -1) return int64_t{0};
    return whole(a) - floor_divide(whole(a), divisor) * divisor;
  }
  check_divisor(real(b) == 0);
  const double rest = std::fmod(real(a), real(b));
  return rest != 0 && (rest < 0) != (real(b) < 0) ? rest + real(b) : rest;
}

IValue python_floor_divide(const IValue& a, const IValue& b) {
  if (both_integers(a, b)) return floor_divide(whole(a), whole(b));
  check_divisor(real(b) == 0);
  return std::floor(real(a) / real(b));
}

// Returns a floating-point number as an integer. Throws if it has none.
int64_t to_integer(double value) {
  TORCH_CHECK_VALUE(std::abs(value) < 9.2e18, "the number ", value,
                    " does not fit into an integer of 64 bits");
  return static_cast<int64_t>(value);
}

template <int64_t (*kIntegers)(int64_t, int64_t), typename Reals>
IValue arithmetic(const IValue& a, const IValue& b) {
  if (both_integers(a, b)) return kIntegers(whole(a), whole(b));
  return Reals()(real(a), real(b));
}

template <typename Compare>
IValue compare(const IValue& a, const IValue& b) {
  if (both_integers(a, b)) return Compare()(whole(a), whole(b));
  return Compare()(real(a), real(b));
}

template <double (*kFunction)(double)>
IValue function(const IValue& a, const IValue&) {
  return kFunction(real(a));
}

template <double (*kRound)(double)>
IValue rounded(const IValue& a, const IValue&) {
  return a.isDouble() ? to_integer(kRound(a.toDouble())) : whole(a);
}

int64_t larger(int64_t a, int64_t b) { return std::max(a, b); }
int64_t smaller(int64_t a, int64_t b) { return std::min(a, b); }
struct Larger {
  double operator()(double a, double b) const { return std::max(a, b); }
};
struct Smaller {
  double operator()(double a, double b) const { return std::min(a, b); }
};

}  // namespace

std::optional<Operation> find_operation(const std::string& target) {
  static const auto* const operations =
      new std::unordered_map<std::string, Operation>{
          {"_operator.add", {arithmetic<add, std::plus<double>>, 2}},
          {"_operator.sub", {arithmetic<subtract, std::minus<double>>, 2}},
          {"_operator.mul", {arithmetic<multiply, std::multiplies<double>>, 2}},
          {"_operator.truediv",
           {[](const IValue& a, const IValue& b) -> IValue {
              check_divisor(real(b) == 0);
              return real(a) / real(b);
            },
            2}},
          {"_operator.floordiv", {python_floor_divide, 2}},
          {"_operator.mod", {python_modulo, 2}},
          {"_operator.pow", {python_power, 2}},
          {"_operator.neg",
           {[](const IValue& a, const IValue&) -> IValue {
              if (a.isDouble()) return -a.toDouble();
              return subtract(0, whole(a));
            },
            1}},
          {"_operator.pos",
           {[](const IValue& a, const IValue&) -> IValue { return a; }, 1}},
          {"_operator.and_",
           {[](const IValue& a, const IValue& b) -> IValue {
              if (a.isBool() && b.isBool()) return a.toBool() && b.toBool();
              return whole(a) & whole(b);
            },
            2}},
          {"_operator.or_",
           {[](const IValue& a, const IValue& b) -> IValue {
              if (a.isBool() && b.isBool()) return a.toBool() || b.toBool();
              return whole(a) | whole(b);
            },
            2}},
          {"_operator.eq", {compare<std::equal_to<>>, 2}},
          {"_operator.ne", {compare<std::not_equal_to<>>, 2}},
          {"_operator.lt", {compare<std::less<>>, 2}},
          {"_operator.le", {compare<std::less_equal<>>, 2}},
          {"_operator.gt", {compare<std::greater<>>, 2}},
          {"_operator.ge", {compare<std::greater_equal<>>, 2}},
          {"torch.sym_max", {arithmetic<larger, Larger>, 2}},
          {"torch.sym_min", {arithmetic<smaller, Smaller>, 2}},
          {"torch.sym_not",
           {[](const IValue& a, const IValue&) -> IValue {
              return real(a) == 0;
            },
            1}},
          {"torch.sym_float",
           {[](const IValue& a, const IValue&) -> IValue { return real(a); },
            1}},
          {"torch.sym_int", {rounded<std::trunc>, 1}},
          {"math.trunc", {rounded<std::trunc>, 1}},
          {"math.ceil", {rounded<std::ceil>, 1}},
          {"math.floor", {rounded<std::floor>, 1}},
          {"torch._sym_sqrt", {function<std::sqrt>, 1}},
          {"torch.sym_sqrt", {function<std::sqrt>, 1}},
          {"math.sqrt", {function<std::sqrt>, 1}},
      };
  const auto found = operations->find(target);
  if (found == operations->end()) return std::nullopt;
  return found->second;
}

}  // namespace gpipe::exported
