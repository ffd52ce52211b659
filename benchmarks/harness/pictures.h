// Pictures of a result: the bar chart of --plot, and --timeline. Does not draw
// timelines itself, see gpipe/simulation.h.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment.h"

namespace gpipe::benchmarks {

// An output file that is checked before the work and written after it.
class OutputFile {
 public:
  // Checks that the file can be written. Does not change or create it.
  //
  // `flag`: the name of the flag, for errors.
  // `path`: the value of the flag; "" for no file.
  // `endings`: the allowed endings of the path.
  //
  // Throws std::invalid_argument, naming `flag`, if `path` does not end in one
  // of `endings` or cannot be written.
  OutputFile(const std::string& flag, std::string path,
             const std::vector<std::string>& endings);

  // Returns true if the flag gives a path.
  bool is_wanted() const { return !path_.empty(); }
  bool ends_in(const std::string& ending) const {
    return path_.ends_with(ending);
  }

  // Replaces the content of the file by `text`. Throws std::runtime_error if
  // the file cannot be written.
  void write(const std::string& text) const;

 private:
  std::string path_;
};

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

// Returns a chart with a group of bars per outcome: gpipe's figure, labelled
// with its mode, and each published column of the same figure. The figure is
// the speed-up. For memory it is the total, or the activations if only these
// are published.
BarChart chart_of(const Benchmark& benchmark, Mode mode,
                  const std::vector<Outcome>& outcomes);

// The pictures that --plot and --timeline ask for.
class Pictures {
 public:
  // Reads the flags. Construct it before the work: it throws
  // std::invalid_argument if a path has a wrong ending or cannot be written.
  Pictures();

  bool wants_timelines() const { return timeline_.is_wanted(); }

  // Writes the pictures that were asked for: chart_of(), and the
  // timelines of the outcomes that have one, on a common time scale. Throws
  // std::runtime_error if a file cannot be written.
  void write(const Benchmark& benchmark, Mode mode,
             const std::vector<Outcome>& outcomes) const;

 private:
  OutputFile plot_;
  OutputFile timeline_;
};

}  // namespace gpipe::benchmarks
