// How good a model is on the data that it was not trained on.
#pragma once

#include <functional>
#include <optional>

#include "trainer/engine.h"
#include "trainer/precision.h"
#include "trainer/task.h"

namespace gpipe::trainer {

// The whole test, in evaluation mode, in which the module is only meanwhile.
// Replicas share the mini-batches, unless they differ in their buffers, as with
// BatchNorm: the first one's score counts then, whose buffers are saved. The
// same result in all processes.
//
// `stop`: asked before each mini-batch; nullopt if it is true in any process.
std::optional<Score> evaluate(Engine& engine, Task& task,
                              const Precision& precision,
                              const std::function<bool()>& stop);

}  // namespace gpipe::trainer
