// A bar chart with groups of bars, as SVG. Does not include LibTorch.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::benchmarks {

// The data of a bar chart.
struct BarChart {
  std::string title;
  std::string axis;  // the quantity that the heights show
  // The legend: one name per bar of a group.
  std::vector<std::string> series;
  struct Group {
    std::string name;
    std::vector<std::optional<double>> values;  // one per series, each >= 0
  };
  std::vector<Group> groups;
  // Formats a value, for the text above its bar and at the axis.
  std::function<std::string(double)> text;
  // The base of the steps between grid lines: 10, or 2 for bytes.
  int base = 10;
};

// The height of the tallest bar of a chart, in pixels.
constexpr double kTallestBar = 240;

// Returns the chart as an SVG document that needs no other file. Heights are
// proportional to the values. An unknown value has no bar. Names may be any
// UTF-8.
//
// Throws std::invalid_argument if a value is negative or not finite, or if a
// group has more values than there are series. Thread-safe.
std::string to_svg(const BarChart& chart);

}  // namespace gpipe::benchmarks
