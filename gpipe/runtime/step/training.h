// Runs a training step, for pipelines of one process and of several.
#pragma once

#include "gpipe/runtime/step/stage_workers.h"
#include "gpipe/runtime/step/step_peers.h"
#include "gpipe/runtime/step/train.h"

namespace gpipe::internal {

// Runs a whole step with the loss computed in the pipeline: see
// PipelineModule::train_step(). Blocks until no other mini-batch runs.
StepResult train(StageWorkers& workers, const StepArguments& given,
                 StepPeers& peers);

}  // namespace gpipe::internal
