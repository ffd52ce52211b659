// The training data of one step.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "training/program/task.h"

namespace gpipe::train_program {

// The data of one step for one replica.
struct StepData {
  // One Sample that the pipeline splits; or, if `split`, one Sample for each
  // micro-batch.
  std::vector<Sample> parts;
  bool split = false;
  // The number of elements of the targets of all replicas: about the number of
  // items of Task::loss(). The same in all replicas.
  int64_t items = 0;
};

// The sizes of a step, and the replica whose share is loaded.
struct StepShare {
  int64_t batch = 0;       // rows of a mini-batch, over all replicas
  int64_t accumulate = 1;  // mini-batches of a step
  int64_t replica = 0;
  int64_t replicas = 1;
  int64_t microbatches = 1;  // of one replica; used if Task::has_parts()
};

// Returns the share of a replica in step `step`, counted from 0. The
// mini-batches of a step form one large mini-batch. Each replica has an equal
// number of consecutive rows. So the number of rows must be a multiple of the
// number of replicas.
//
// If Task::has_parts(), the replicas take the micro-batches in turn instead.
// Neighbours have similar lengths, and so have the shares.
StepData load_step(Task& task, const StepShare& share, int64_t step);

// Moves the tensors of `data` to pinned memory if `device` is an accelerator,
// so that a copy to it neither blocks the host nor waits there for earlier work
// of the device. Takes one more copy on the host: call it on the thread that
// loads.
void pin(StepData& data, const c10::Device& device);

}  // namespace gpipe::train_program
