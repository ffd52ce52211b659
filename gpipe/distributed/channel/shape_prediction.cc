#include "gpipe/distributed/channel/shape_prediction.h"

#include <cstddef>

namespace gpipe::internal {
namespace {

// The number of messages that are remembered. When a program with ever new
// schedules reaches it, both sides forget all after the same message.
constexpr std::size_t kMost = 1 << 16;

}  // namespace

const ShapePrediction::Specs* ShapePrediction::predict(
    MessageId message) const {
  message.step = 0;
  const auto found = past_.find(message);
  if (found == past_.end() || !found->second.twice) return nullptr;
  return &found->second.specs;
}

void ShapePrediction::observe(MessageId message, const Specs& specs) {
  message.step = 0;
  const auto found = past_.find(message);
  if (found != past_.end()) {
    Past& past = found->second;
    past.twice = past.specs == specs;
    if (!past.twice) past.specs = specs;
    return;
  }
  if (past_.size() == kMost) past_.clear();
  past_.emplace(message, Past{specs, false});
}

}  // namespace gpipe::internal
