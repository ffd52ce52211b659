#include "models/exported/program.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <charconv>
#include <string_view>

namespace gpipe::exported {

// ---- Symbols

namespace {

bool drop_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Takes a positive integer from the front of `text`.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number <= 0) return std::nullopt;
  text.remove_prefix(end - text.data());
  return number;
}

// Returns the name if `text` is one symbol, else nullopt.
std::optional<std::string> symbol_name(std::string_view text) {
  if (drop_prefix(text, "Symbol('")) {
    const auto end = text.find('\'');
    // Nothing may follow the symbol but its assumptions.
    if (end == std::string_view::npos || text.find(')') != text.size() - 1) {
      return std::nullopt;
    }
    return std::string(text.substr(0, end));
  }
  const bool is_name = std::ranges::all_of(
      text, [](char each) { return absl::ascii_isalnum(each) || each == '_'; });
  if (text.empty() || !is_name || absl::ascii_isdigit(text[0])) {
    return std::nullopt;
  }
  return std::string(text);
}

}  // namespace

int Symbols::number_of(const std::string& name) {
  const auto [found, is_new] =
      numbers_.emplace(name, static_cast<int>(names_.size()));
  if (is_new) {
    names_.push_back(name);
    ranges_.emplace_back();
  }
  return found->second;
}

Extent Symbols::parse(const std::string& expression) {
  if (const auto name = symbol_name(expression)) return {number_of(*name), 1};
  std::string_view rest = expression;
  if (drop_prefix(rest, "Mul(Integer(")) {
    const auto factor = take_number(rest);
    if (factor && drop_prefix(rest, "), ") && rest.ends_with(')')) {
      rest.remove_suffix(1);
      if (const auto name = symbol_name(rest)) {
        return {number_of(*name), *factor};
      }
    }
  } else if (const auto factor = take_number(rest)) {
    if (rest.empty()) return {Extent::kNone, *factor};
    if (drop_prefix(rest, "*")) {
      if (const auto name = symbol_name(rest)) {
        return {number_of(*name), *factor};
      }
    }
  }
  return {number_of(expression), 1};
}

int64_t Symbols::largest(const Extent& extent) const {
  if (extent.symbol == Extent::kNone) return extent.factor;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const int64_t most = range(extent.symbol).most;
  return most > kMost / extent.factor ? kMost : most * extent.factor;
}

std::string Symbols::text(const Extent& extent) const {
  if (extent.symbol == Extent::kNone) return std::to_string(extent.factor);
  if (extent.factor == 1) return names_[extent.symbol];
  return std::to_string(extent.factor) + "*" + names_[extent.symbol];
}

// ---- Programs

std::string place_of(const Node& node) {
  std::string text = "node '" + node.name + "' (" + node.target + ")";
  if (!node.module.empty()) text += " of module '" + node.module + "'";
  if (!node.source.empty()) text += ", " + node.source;
  return text;
}

std::string shape_text(const Program& program, ValueId tensor) {
  const Value& value = program.values[tensor];
  std::string text =
      value.dtype ? std::string(c10::toString(*value.dtype)) + " [" : "[";
  for (std::size_t k = 0; k < value.sizes.size(); ++k) {
    text += (k ? ", " : "") + program.symbols.text(value.sizes[k]);
  }
  return text + "]";
}

const Extent* size_extent(const Program& program, const Node& node) {
  if (!node.is_size || node.reads.size() != 1 || node.results.size() != 1 ||
      node.results[0].values.size() != 1) {
    return nullptr;
  }
  const ValueId id = node.results[0].values[0];
  if (id == kNoValue || !program.values[id].extent) return nullptr;
  return &*program.values[id].extent;
}

ValueId tensor_in(const Node& node, std::size_t place) {
  if (place >= node.arguments.size()) return kNoValue;
  const Argument& argument = node.arguments[place];
  return argument.kind == Argument::Kind::kValue ? argument.elements[0].value
                                                 : kNoValue;
}

std::string operator_name(const Node& node) {
  std::string_view name = node.target;
  if (drop_prefix(name, "torch.ops.")) {
    name = name.substr(0, name.rfind('.'));
  }
  return std::string(name);
}

}  // namespace gpipe::exported
