// Loads mini-batches of a dataset ahead of their use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "data/image_dataset.h"

namespace gpipe::data {

// One mini-batch.
struct Batch {
  at::Tensor images;  // float, [rows, 3, size, size]
  at::Tensor labels;  // int64, [rows]
};

// A function that returns the network's input for the image at `index` of the
// dataset. All results must have the same shape.
using Transform =
    std::function<at::Tensor(const at::Tensor& image, int64_t index)>;

// An iterator over the mini-batches of a dataset, once in the given order.
// While one mini-batch is in use, a separate thread loads the next one.
// `transform` gets the index of the image, so results need not depend on the
// loading order.
//
// Not thread-safe. `transform` runs on the loading thread.
class BatchLoader {
 public:
  // `order`: indices into `images`. `whole_batches`: leaves out a last
  // mini-batch of fewer than `batch_size` images. Throws c10::ValueError if
  // `batch_size` is below 1.
  BatchLoader(std::shared_ptr<const ImageDataset> images,
              std::vector<int64_t> order, int64_t batch_size,
              bool whole_batches, Transform transform);

  // Returns the next mini-batch, or nothing at the end. Throws the exception
  // that occurred while loading it; later calls return nothing.
  std::optional<Batch> next();

 private:
  void start_loading();

  std::shared_ptr<const ImageDataset> images_;
  std::vector<int64_t> order_;
  int64_t batch_size_;
  Transform transform_;
  int64_t position_ = 0;
  std::future<Batch> loading_;  // last member, so that its thread ends first
};

}  // namespace gpipe::data
