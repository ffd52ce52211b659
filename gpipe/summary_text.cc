// A Summary as a table.
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "gpipe/summary.h"

namespace gpipe {
namespace {

std::string with_commas(int64_t number) {
  std::string text = std::to_string(number);
  for (auto place = static_cast<int64_t>(text.size()) - 3; place > 0;
       place -= 3) {
    text.insert(place, ",");
  }
  return text;
}

std::string bytes_text(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB",
                                                 "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.4g %s",
                value, kUnits[unit]);
  return text.data();
}

std::string outputs_text(const std::vector<TensorSummary>& outputs) {
  if (outputs.size() == 1) return outputs[0].text();
  std::string text;
  for (const TensorSummary& output : outputs) {
    text += (text.empty() ? "(" : ", ") + output.text();
  }
  return text.empty() ? "" : text + ")";
}

std::string skips_text(const LayerSummary& layer) {
  std::string text;
  for (const std::string& name : layer.stashes) text += " stash " + name;
  for (const std::string& name : layer.pops) text += " pop " + name;
  return text;
}

using Row = std::array<std::string, 5>;

Row row_of(std::size_t index, const LayerSummary& layer) {
  return {std::to_string(index), layer.name, layer.type + skips_text(layer),
          outputs_text(layer.outputs), with_commas(layer.parameters)};
}

void print_partition(std::ostream& stream, std::size_t j,
                     const PartitionSummary& partition) {
  stream << "partition " << j;
  if (partition.device) stream << " on " << *partition.device;
  stream << ": " << partition.layers
         << (partition.layers == 1 ? " layer, " : " layers, ")
         << with_commas(partition.parameters) << " parameters, "
         << bytes_text(partition.bytes) << "\n";
}

void print_crossing(std::ostream& stream, const CrossingSummary& crossing) {
  stream << "  from " << crossing.from << " to " << crossing.to << ": ";
  if (crossing.skip) {
    stream << "skip " << crossing.skip->name << ", "
           << crossing.skip->stashed_by << " to " << crossing.skip->popped_by;
  } else {
    stream << "boundary";
  }
  if (crossing.bytes) stream << ", " << bytes_text(*crossing.bytes);
  stream << "\n";
}

}  // namespace

std::string TensorSummary::text() const {
  if (!defined) return "undefined";
  std::ostringstream text;
  text << c10::getDtypeNames(dtype).first << " " << c10::IntArrayRef(sizes);
  return text.str();
}

std::ostream& operator<<(std::ostream& stream, const Summary& summary) {
  std::vector<Row> rows = {{"#", "layer", "type", "output", "parameters"}};
  for (const LayerSummary& layer : summary.layers) {
    rows.push_back(row_of(rows.size() - 1, layer));
  }
  std::array<std::size_t, 5> widths{};
  for (const Row& row : rows) {
    for (std::size_t k = 0; k < row.size(); ++k) {
      widths[k] = std::max(widths[k], row[k].size());
    }
  }
  const auto print = [&](const Row& row) {
    for (std::size_t k = 0; k < row.size(); ++k) {
      if (widths[k] == 0) continue;
      const std::string space(widths[k] - row[k].size(), ' ');
      const bool is_number = k == 0 || k + 1 == row.size();
      stream << "  " << (is_number ? space + row[k] : row[k] + space);
    }
    stream << "\n";
  };

  print(rows[0]);
  const bool is_cut =
      summary.partitions.size() > 1 ||
      (!summary.partitions.empty() && summary.partitions[0].device.has_value());
  for (std::size_t j = 0; j < summary.partitions.size(); ++j) {
    const PartitionSummary& partition = summary.partitions[j];
    if (is_cut) print_partition(stream, j, partition);
    for (int64_t k = 0; k < partition.layers; ++k) {
      print(rows[1 + partition.first_layer + k]);
    }
  }
  stream << "in all: " << summary.layers.size()
         << (summary.layers.size() == 1 ? " layer, " : " layers, ")
         << with_commas(summary.parameters()) << " parameters, "
         << bytes_text(summary.bytes()) << "\n";
  if (!summary.crossings.empty()) stream << "between partitions:\n";
  for (const CrossingSummary& crossing : summary.crossings) {
    print_crossing(stream, crossing);
  }
  return stream;
}

}  // namespace gpipe
