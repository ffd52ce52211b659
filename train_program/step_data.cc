#include "train_program/step_data.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <utility>

namespace gpipe::train_program {
namespace {

// Returns rows of the training data, counted from 0 over all epochs.
Sample load_rows(Task& task, int64_t batch, Rows rows) {
  std::vector<at::Tensor> inputs, targets;
  for (int64_t row = rows.begin; row < rows.end;) {
    const int64_t index = row / batch;
    const int64_t end = std::min(rows.end, (index + 1) * batch);
    const int64_t first = index * batch;
    Sample some = task.train_batch(index, {row - first, end - first});
    inputs.push_back(std::move(some.input));
    targets.push_back(std::move(some.target));
    row = end;
  }
  if (inputs.size() == 1) return {inputs.front(), targets.front()};
  return {at::cat(inputs), at::cat(targets)};
}

}  // namespace

void pin(StepData& data, const c10::Device& device) {
  if (device.is_cpu()) return;
  for (Sample& part : data.parts) {
    for (at::Tensor* const each : {&part.input, &part.target}) {
      if (each->defined()) *each = each->pin_memory();
    }
  }
}

StepData load_step(Task& task, const StepShare& share, int64_t step) {
  const int64_t rows = share.batch * share.accumulate;
  const int64_t begin = step * rows;
  StepData data;
  data.split = task.has_parts();
  if (!data.split) {
    const int64_t own = rows / share.replicas;
    const int64_t first = begin + share.replica * own;
    data.parts = {load_rows(task, share.batch, {first, first + own})};
    data.items = data.parts.front().target.numel() * share.replicas;
    return data;
  }
  auto all = task.train_parts({begin, begin + rows},
                              share.microbatches * share.replicas);
  for (std::size_t k = 0; k < all.size(); ++k) {
    data.items += all[k].target.numel();
    if (static_cast<int64_t>(k) % share.replicas == share.replica) {
      data.parts.push_back(std::move(all[k]));
    }
  }
  return data;
}

}  // namespace gpipe::train_program
