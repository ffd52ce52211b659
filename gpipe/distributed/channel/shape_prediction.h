// Prediction of a message's tensors from earlier messages, so that receives can
// be posted before the message's header arrives.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "gpipe/distributed/channel/message.h"
#include "gpipe/distributed/channel/tensor_spec.h"

namespace gpipe::internal {

// A table of predicted messages for one direction between two ranks. The sender
// and the receiver have one each. Both see the same messages in the same order,
// so both always predict the same.
//
// Not thread-safe.
class ShapePrediction {
 public:
  using Specs = std::vector<TensorSpec>;

  // Returns the predicted tensors of `message` if it had the same ones in its
  // last two steps, else null. (Predictions after only one step would be wrong
  // more often.) The pointer is valid until observe() is called.
  const Specs* predict(const MessageId& message) const;

  // Records that `message` had the tensors `specs`.
  void observe(const MessageId& message, const Specs& specs);

 private:
  // All members of a MessageId except `step`.
  using Key =
      std::tuple<uint32_t, Direction, int32_t, int32_t, int32_t, int32_t>;
  static Key key_of(const MessageId& message);

  struct Past {
    Specs specs;
    bool twice = false;
  };
  std::map<Key, Past> past_;
};

}  // namespace gpipe::internal
