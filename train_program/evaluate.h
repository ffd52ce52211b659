// The evaluation of a model on held-out data.
#pragma once

#include <functional>
#include <optional>

#include "train_program/engine.h"
#include "train_program/precision.h"
#include "train_program/task.h"

namespace gpipe::train_program {

// Returns the score on the whole test set, the same in all processes. The
// module is in evaluation mode during the call and returns to its mode after.
//
// Replicas share the mini-batches if their buffers are equal. With BatchNorm
// the buffers may differ. Then only the score of the first replica counts,
// since a run checkpoint contains the buffers of that replica.
//
// `stop`: a function that is called before each mini-batch. If it returns true
// in any process, the result is nullopt in all.
std::optional<Score> evaluate(Engine& engine, Task& task,
                              const Precision& precision,
                              const std::function<bool()>& stop);

}  // namespace gpipe::train_program
