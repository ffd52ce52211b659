#include "training/program/step_data.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace gpipe::train_program {
namespace {

// Returns rows of the training data, counted from 0 over all epochs.
Sample load_rows(Task& task, int64_t batch, Rows rows) {
  std::vector<Sample> parts;
  for (int64_t row = rows.begin; row < rows.end;) {
    const int64_t index = row / batch;
    const int64_t end = std::min(rows.end, (index + 1) * batch);
    const int64_t first = index * batch;
    parts.push_back(task.train_batch(index, {row - first, end - first}));
    row = end;
  }
  if (parts.size() == 1) return std::move(parts.front());
  const auto joined = [&](const auto& tensor_of) {
    std::vector<at::Tensor> tensors;
    for (const Sample& each : parts) tensors.push_back(tensor_of(each));
    return at::cat(tensors);
  };
  Sample all{joined([](const Sample& each) { return each.input; }),
             joined([](const Sample& each) { return each.target; }),
             {}};
  for (std::size_t k = 0; k < parts.front().further.size(); ++k) {
    all.further.push_back(
        joined([k](const Sample& each) { return each.further[k]; }));
  }
  return all;
}

}  // namespace

void pin(StepData& data, const c10::Device& device) {
  if (device.is_cpu()) return;
  const auto pin = [](at::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.pin_memory();
  };
  for (Sample& part : data.parts) {
    pin(part.input);
    pin(part.target);
    for (at::Tensor& each : part.further) pin(each);
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
