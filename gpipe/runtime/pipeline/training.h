// Runs a training step, for pipelines of one process and of several.
#pragma once

#include "gpipe/runtime/pipeline/step_peers.h"
#include "gpipe/runtime/step/stage_workers.h"
#include "gpipe/train.h"

namespace gpipe::internal {

// Runs one training step, whose loss is computed in the pipeline, and returns
// its result. Waits until no other mini-batch runs, then blocks until the step
// has ended. PipelineModule::train_step() describes results and errors.
//
// `workers`: the stages of this process, with a thread for each rank.
// `given`: the input, the target, the loss, the schedule and the options.
// `peers`: what the processes of a pipeline do together in a step.
StepResult train(StageWorkers& workers, const StepArguments& given,
                 StepPeers& peers);

}  // namespace gpipe::internal
