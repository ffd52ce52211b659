// Line charts side by side, as SVG.
#pragma once

#include <string>
#include <vector>

namespace gpipe::tools {

// A chart with one line for each series.
struct LineChart {
  std::string title;
  std::vector<std::string>
      ticks;  // the names of the points, from left to right
  struct Series {
    std::string name;
    std::vector<double> values;  // one per tick
  };
  std::vector<Series> series;
};

// Returns an SVG document that needs no other file: the charts from left to
// right, with one scale of height and one legend. A series has the same colour
// and dashes in all charts. Names may be any UTF-8.
//
// Throws std::invalid_argument if a series does not have one value per tick, or
// if a value is not finite. Thread-safe.
std::string to_svg(const std::vector<LineChart>& charts);

}  // namespace gpipe::tools
