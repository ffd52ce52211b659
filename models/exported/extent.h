// Sizes of tensors as multiples of symbols, such as the rows of a micro-batch.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>
#include <vector>

namespace gpipe::exported {

// The size of a dimension, or an integer that is computed from sizes: `factor`
// times the value of symbol number `symbol`. A number that is known when the
// program is exported has symbol kNone.
struct Extent {
  static constexpr int kNone = -1;
  int symbol = kNone;
  int64_t factor = 0;
};

// The limits of a symbol, from the dynamic_shapes of the export.
struct Range {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int64_t>::max();
};

// The symbols of a program.
class Symbols {
 public:
  // Returns the extent of an expression of the file. A symbol ("s77", or
  // "Symbol('s77', positive=True, integer=True)") and an integer multiple of
  // one are understood. Any other expression becomes a symbol of its own: two
  // equal expressions have equal values.
  Extent parse(const std::string& expression);

  // Returns the name of a symbol, or an expression.
  const std::string& name(int symbol) const { return names_[symbol]; }
  Range& range(int symbol) { return ranges_[symbol]; }
  const Range& range(int symbol) const { return ranges_[symbol]; }
  int size() const { return static_cast<int>(names_.size()); }

  // Returns "3", "s77" or "2*s77".
  std::string text(const Extent& extent) const;

 private:
  int number_of(const std::string& name);

  std::vector<std::string> names_;
  std::vector<Range> ranges_;
  std::unordered_map<std::string, int> numbers_;
};

}  // namespace gpipe::exported
