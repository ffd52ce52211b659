// Bars in groups, as a picture. No LibTorch.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::benchmarks {

struct BarChart {
  std::string title;
  std::string axis;  // what the heights are
  // One per bar of a group, in the legend.
  std::vector<std::string> series;
  struct Group {
    std::string name;
    std::vector<std::optional<double>> values;  // one per series, each >= 0
  };
  std::vector<Group> groups;
  // A height as text, above its bar and at the axis.
  std::function<std::string(double)> text;
  // Of the steps between lines: 10 or, for bytes, 2.
  int base = 10;
};

// Of all bars together: the height of the largest, in pixels.
constexpr double kTallestBar = 240;

// An SVG document that needs no other file. Heights are proportional to the
// values; a value that is not known has no bar. Names may be any UTF-8.
//
// Errors: std::invalid_argument for a value that is negative or not finite, or
// a group with more values than there are series. Threads: pure function.
std::string to_svg(const BarChart& chart);

}  // namespace gpipe::benchmarks
