// Prints a Summary as a table.
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "gpipe/base/text/columns.h"
#include "gpipe/base/text/units.h"
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

std::vector<std::string> row_of(std::size_t index, const LayerSummary& layer) {
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
  std::vector<std::vector<std::string>> rows = {
      {"#", "layer", "type", "output", "parameters"}};
  for (const LayerSummary& layer : summary.layers) {
    rows.push_back(row_of(rows.size() - 1, layer));
  }
  const std::vector<std::string> lines = align_columns(rows, "rlllr");

  stream << lines[0] << "\n";
  const bool is_cut =
      summary.partitions.size() > 1 ||
      (!summary.partitions.empty() && summary.partitions[0].device.has_value());
  for (std::size_t j = 0; j < summary.partitions.size(); ++j) {
    const PartitionSummary& partition = summary.partitions[j];
    if (is_cut) print_partition(stream, j, partition);
    for (int64_t k = 0; k < partition.layers; ++k) {
      stream << lines[1 + partition.first_layer + k] << "\n";
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
