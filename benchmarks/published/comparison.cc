#include "benchmarks/published/comparison.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "gpipe/base/text.h"

namespace gpipe::benchmarks {
namespace {

std::string text_of(double value) { return absl::StrFormat("%.4f", value); }

}  // namespace

double largest_deviation(const Comparison& comparison) {
  double largest = 0;
  for (const PublishedFigure& figure : comparison.figures) {
    largest = std::max(largest, std::abs(figure.ours - figure.theirs));
  }
  return largest;
}

std::ostream& operator<<(std::ostream& stream, const Comparison& comparison) {
  stream << comparison.title << "\n  source: " << comparison.source
         << "\n  settings: " << comparison.settings << "\n";
  std::vector<std::vector<std::string>> table = {
      {"setting", "", "theirs", "ours", "deviation"}};
  for (const PublishedFigure& figure : comparison.figures) {
    table.push_back({figure.setting, figure.name, text_of(figure.theirs),
                     text_of(figure.ours),
                     text_of(figure.ours - figure.theirs)});
  }
  return stream << columns_text(table, "llr") << "  largest deviation: "
                << text_of(largest_deviation(comparison))
                << "\n  why: " << comparison.why << "\n\n";
}

}  // namespace gpipe::benchmarks
