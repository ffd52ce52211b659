#include "gpipe/text/svg.h"

#include <cmath>
#include <utility>

#include "gpipe/text/format.h"

namespace gpipe {
namespace {

constexpr char kStyle[] =
    "text { font: 11px sans-serif; fill: #000 }\n"
    ".title { font: bold 13px sans-serif }\n"
    ".right { text-anchor: end }\n";

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += static_cast<unsigned char>(c) < ' ' && c != '\t' && c != '\n'
                      ? '?'
                      : c;
    }
  }
  return result;
}

std::string attribute(std::string_view name, std::string_view value) {
  return format(" %s=\"", std::string(name).c_str()).append(value) + "\"";
}

std::string attribute(std::string_view name, double value) {
  return attribute(name, svg_number(value));
}

std::string class_of(std::string_view style) {
  return style.empty() ? "" : attribute("class", style);
}

// Returns the end of an element that has begun with <`name`.
std::string ending(const std::string& name, std::string_view tooltip) {
  if (tooltip.empty()) return "/>\n";
  return "><title>" + escaped(tooltip) + "</title></" + name + ">\n";
}

}  // namespace

std::string svg_number(double value) { return format("%.2f", value); }

std::string svg_text(double x, double y, std::string_view style,
                     std::string_view text) {
  return "<text" + attribute("x", x) + attribute("y", y) + class_of(style) +
         ">" + escaped(text) + "</text>\n";
}

std::string svg_line(std::string_view style, double x1, double y1, double x2,
                     double y2, std::string_view tooltip) {
  return "<line" + class_of(style) + attribute("x1", x1) + attribute("y1", y1) +
         attribute("x2", x2) + attribute("y2", y2) + ending("line", tooltip);
}

std::string svg_box(std::string_view style, double x, double y, double width,
                    double height, std::string_view attributes,
                    std::string_view tooltip) {
  std::string box = "<rect" + class_of(style) + attribute("x", x) +
                    attribute("y", y) + attribute("width", width) +
                    attribute("height", height);
  if (!attributes.empty()) box.append(" ").append(attributes);
  return box + ending("rect", tooltip);
}

std::string svg_document(double width, double height, std::string_view style,
                         std::string_view body) {
  const std::string size =
      attribute("width", width) + attribute("height", height);
  std::string document =
      "<svg xmlns=\"http://www.w3.org/2000/svg\"" + size +
      format(" viewBox=\"0 0 %.2f %.2f\">\n", width, height) + "<style>\n" +
      kStyle;
  document.append(style).append("</style>\n");
  document += "<rect" + size + " fill=\"#fff\"/>\n";
  return document.append(body) + "</svg>\n";
}

double tick_step(double span, int most) {
  const double least = span / most;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1, 2, 5}) {
    if (factor * power >= least) return factor * power;
  }
  return 10 * power;
}

}  // namespace gpipe
