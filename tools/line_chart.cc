#include "tools/line_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "gpipe/text/format.h"
#include "gpipe/text/refuse.h"
#include "gpipe/text/xml.h"

namespace gpipe::tools {
namespace {

// Sizes in pixels.
constexpr double kWidth = 300, kHeight = 260;  // of the area of lines
constexpr double kLeft = 60, kTop = 40, kBottom = 40, kLegendLine = 18;
constexpr int kGridLines = 5;

// Colours that are distinguishable with colour blindness (Okabe and Ito). Every
// seven series, the dashes change.
constexpr std::array<const char*, 7> kColours = {
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000"};
constexpr std::array<const char*, 3> kDashes = {"", "6 3", "2 2"};

std::string number(double value) { return format("%.2f", value); }

std::string text_at(double x, double y, const char* anchor,
                    const std::string& text) {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) +
         "\" text-anchor=\"" + anchor + "\">" + xml_escaped(text) + "</text>\n";
}

// Returns the attributes of the line of series number `k`.
std::string stroke(std::size_t k) {
  return std::string("fill=\"none\" stroke-width=\"1.5\" stroke=\"") +
         kColours[k % kColours.size()] + "\" stroke-dasharray=\"" +
         kDashes[k / kColours.size() % kDashes.size()] + "\"";
}

// The heights of values.
struct Scale {
  double least = 0, most = 0;
  double y(double value) const {
    return kTop + kHeight * (most - value) / (most - least);
  }
};

Scale scale_of(const std::vector<LineChart>& charts) {
  std::vector<double> values;
  for (const LineChart& chart : charts) {
    for (const auto& [name, line] : chart.series) {
      if (line.size() != chart.ticks.size()) {
        internal::refuse(name, " has ", line.size(), " values for ",
                         chart.ticks.size(), " ticks of a chart");
      }
      for (const double value : line) {
        if (!std::isfinite(value)) {
          internal::refuse(name, " has the value ", value,
                           ": a chart shows finite values only");
        }
        values.push_back(value);
      }
    }
  }
  if (values.empty()) return {0, 1};
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return *least < *most ? Scale{*least, *most} : Scale{*least, *least + 1};
}

// Returns one chart whose area of lines begins at `left`.
std::string draw(const LineChart& chart, const Scale& scale, double left) {
  std::string text = text_at(left, kTop - 18, "start", chart.title);
  for (int k = 0; k <= kGridLines; ++k) {
    const double value =
        scale.least + (scale.most - scale.least) * k / kGridLines;
    const std::string y = number(scale.y(value));
    text += "<line stroke=\"#ddd\" x1=\"" + number(left) + "\" x2=\"" +
            number(left + kWidth) + "\" y1=\"" + y + "\" y2=\"" + y + "\"/>\n";
    text += text_at(left - 6, scale.y(value) + 4, "end", number(value));
  }
  const std::size_t count = chart.ticks.size();
  const auto x = [&](std::size_t k) {
    return left + (count < 2 ? kWidth / 2
                             : kWidth * static_cast<double>(k) /
                                   static_cast<double>(count - 1));
  };
  for (std::size_t k = 0; k < count; ++k) {
    text += text_at(x(k), kTop + kHeight + 18, "middle", chart.ticks[k]);
  }
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    const auto& [name, values] = chart.series[s];
    std::string points;
    for (std::size_t k = 0; k < count; ++k) {
      points += number(x(k)) + "," + number(scale.y(values[k])) + " ";
    }
    text += "<polyline " + stroke(s) + " points=\"" + points + "\"><title>" +
            xml_escaped(name) + "</title></polyline>\n";
  }
  return text;
}

}  // namespace

std::string to_svg(const std::vector<LineChart>& charts) {
  const Scale scale = scale_of(charts);
  const double area = kLeft + kWidth;
  std::string text;
  for (std::size_t k = 0; k < charts.size(); ++k) {
    text += draw(charts[k], scale, static_cast<double>(k) * area + kLeft);
  }
  const double right = static_cast<double>(charts.size()) * area + 20;
  double y = kTop;
  const auto& names =
      charts.empty() ? std::vector<LineChart::Series>{} : charts[0].series;
  for (std::size_t s = 0; s < names.size(); ++s, y += kLegendLine) {
    text += "<path " + stroke(s) + " d=\"M" + number(right) + " " + number(y) +
            "h30\"/>\n" + text_at(right + 36, y + 4, "start", names[s].name);
  }
  const double height = std::max(kTop + kHeight + kBottom, y);
  const std::string size =
      "width=\"" + number(right + 200) + "\" height=\"" + number(height) + "\"";
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" " + size +
         ">\n<style>text { font: 11px sans-serif }</style>\n<rect " + size +
         " fill=\"#fff\"/>\n" + text + "</svg>\n";
}

}  // namespace gpipe::tools
