// What a message will be, judged by those before it, so that what it needs can
// be posted before it is announced.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "gpipe/distributed/wire.h"

namespace gpipe {

// Sender and receiver have one each of the same messages, in the same order,
// and so always foresee the same.
//
// Threads: one at a time.
class Forecast {
 public:
  using Specs = std::vector<TensorSpec>;

  // The tensors of this message, if it had the same ones in its last two steps;
  // else null. (One that has come once more often comes by chance than one that
  // has come twice.) Valid until learn().
  const Specs* of(const MessageId& message) const;

  // It had these.
  void learn(const MessageId& message, const Specs& specs);

 private:
  // All but the step.
  using Key =
      std::tuple<uint32_t, Direction, int32_t, int32_t, int32_t, int32_t>;
  static Key key_of(const MessageId& message);

  struct Past {
    Specs specs;
    bool twice = false;
  };
  std::map<Key, Past> past_;
};

}  // namespace gpipe
