#include "gpipe/base/svg.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_replace.h>

#include <bit>
#include <cmath>
#include <cstddef>

namespace gpipe {
namespace {

constexpr char kStyle[] =
    "text { font: 11px sans-serif; fill: #000 }\n"
    ".title { font: bold 13px sans-serif }\n"
    ".right { text-anchor: end }\n";

struct Character {
  char32_t code = 0;
  std::size_t length = 1;  // bytes of UTF-8
};

// Returns the first character of `text`; the first byte with code 0 if no UTF-8
// begins there.
Character first_character(std::string_view text) {
  // By length; smaller codes have a shorter form.
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return {first};
  const auto length = static_cast<std::size_t>(std::countl_one(first));
  if (length == 1 || length > 4 || length > text.size()) return {};
  char32_t code = first & (0x7f >> length);
  for (const char each : text.substr(1, length - 1)) {
    const auto byte = static_cast<unsigned char>(each);
    if (byte >> 6 != 2) return {};
    code = code << 6 | (byte & 0x3f);
  }
  return code < kLeast[length] ? Character() : Character{code, length};
}

// Returns whether XML can represent a character. It reads a carriage return as
// a line feed.
bool is_in_xml(char32_t code) {
  return code == '\t' || code == '\n' || (code >= ' ' && code < 0xd800) ||
         (code >= 0xe000 && code < 0xfffe) ||
         (code >= 0x10000 && code <= 0x10ffff);
}

std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const Character next = first_character(text);
    result += is_in_xml(next.code) ? text.substr(0, next.length) : "?";
    text.remove_prefix(next.length);
  }
  return absl::StrReplaceAll(
      result, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string class_of(std::string_view style) {
  return style.empty() ? "" : absl::StrFormat(" class=\"%s\"", style);
}

// Returns the end of an element that has begun with <`name`.
std::string ending(const std::string& name, std::string_view tooltip) {
  if (tooltip.empty()) return "/>\n";
  return "><title>" + escaped(tooltip) + "</title></" + name + ">\n";
}

}  // namespace

std::string svg_number(double value) { return absl::StrFormat("%.2f", value); }

std::string svg_text(double x, double y, std::string_view style,
                     std::string_view text) {
  return absl::StrFormat("<text x=\"%.2f\" y=\"%.2f\"%s>%s</text>\n", x, y,
                         class_of(style), escaped(text));
}

std::string svg_line(std::string_view style, double x1, double y1, double x2,
                     double y2, std::string_view tooltip) {
  return absl::StrFormat(
      "<line%s x1=\"%.2f\" y1=\"%.2f\" x2=\"%.2f\" y2=\"%.2f\"%s",
      class_of(style), x1, y1, x2, y2, ending("line", tooltip));
}

std::string svg_box(std::string_view style, double x, double y, double width,
                    double height, std::string_view attributes,
                    std::string_view tooltip) {
  return absl::StrFormat(
      "<rect%s x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"%s%s%s",
      class_of(style), x, y, width, height, attributes.empty() ? "" : " ",
      attributes, ending("rect", tooltip));
}

std::string svg_document(double width, double height, std::string_view style,
                         std::string_view body) {
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.2f\" "
      "height=\"%.2f\" viewBox=\"0 0 %.2f %.2f\">\n<style>\n%s%s</style>\n"
      "<rect width=\"%.2f\" height=\"%.2f\" fill=\"#fff\"/>\n%s</svg>\n",
      width, height, width, height, kStyle, style, width, height, body);
}

double tick_step(double span, int most) {
  const double least = span / most;
  const double power = std::pow(10, std::floor(std::log10(least)));
  if (!(power > 0)) return span;  // too small to be divided
  for (const double factor : {1, 2, 5}) {
    if (factor * power >= least) return factor * power;
  }
  return 10 * power;
}

}  // namespace gpipe
