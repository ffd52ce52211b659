// Prediction of a message's tensors from earlier messages, so that receives can
// be posted before the message's header arrives.
#pragma once

#include <map>
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
  const Specs* predict(MessageId message) const;

  // Records that `message` had the tensors `specs`.
  void observe(MessageId message, const Specs& specs);

 private:
  struct Past {
    Specs specs;
    bool twice = false;
  };
  std::map<MessageId, Past> past_;  // by message of step 0
};

}  // namespace gpipe::internal
