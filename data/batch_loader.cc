#include "data/batch_loader.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace gpipe::data {
namespace {

Batch load(const ImageDataset& images, const std::vector<int64_t>& indices,
           const Transform& transform) {
  std::vector<at::Tensor> inputs;
  std::vector<int64_t> labels;
  for (const int64_t index : indices) {
    const LabelledImage item = images.get(index);
    inputs.push_back(transform(item.image, index));
    labels.push_back(item.label);
  }
  return {at::stack(inputs), at::tensor(labels)};
}

}  // namespace

BatchLoader::BatchLoader(std::shared_ptr<const ImageDataset> images,
                         std::vector<int64_t> order, int64_t batch_size,
                         bool whole_batches, Transform transform)
    : images_(std::move(images)),
      order_(std::move(order)),
      batch_size_(batch_size),
      transform_(std::move(transform)) {
  TORCH_CHECK_VALUE(batch_size > 0, "a batch of ", batch_size, " images");
  if (whole_batches) {
    order_.resize(order_.size() - order_.size() % batch_size);
  }
  start_loading();
}

void BatchLoader::start_loading() {
  const auto begin = order_.begin() + position_;
  const int64_t rows = std::min<int64_t>(batch_size_, order_.end() - begin);
  if (rows == 0) return;
  position_ += rows;
  loading_ =
      std::async(std::launch::async,
                 [this, indices = std::vector<int64_t>(begin, begin + rows)] {
                   return load(*images_, indices, transform_);
                 });
}

std::optional<Batch> BatchLoader::next() {
  if (!loading_.valid()) return std::nullopt;
  Batch batch = loading_.get();
  start_loading();
  return batch;
}

}  // namespace gpipe::data
