// Mini-batches of a data set, loaded ahead of their use.
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

struct Batch {
  at::Tensor images;  // float, [rows, 3, size, size]
  at::Tensor labels;  // int64, [rows]
};

// From the image at `index` of the data set to a tensor of the same shape for
// all of them.
using Transform =
    std::function<at::Tensor(const at::Tensor& image, int64_t index)>;

// Goes once over the images that `order` lists. While a batch is in use the
// next one is loaded on a thread of its own; since `transform` gets the index,
// results need not depend on that.
class BatchLoader {
 public:
  // With `whole_batches` a remainder of fewer than batch_size is left out.
  BatchLoader(std::shared_ptr<const ImageDataset> images,
              std::vector<int64_t> order, int64_t batch_size,
              bool whole_batches, Transform transform);

  // The next batch, none at the end. Throws what loading it threw.
  std::optional<Batch> next();

 private:
  void start_loading();

  std::shared_ptr<const ImageDataset> images_;
  std::vector<int64_t> order_;
  int64_t batch_size_;
  Transform transform_;
  int64_t position_ = 0;
  std::future<Batch> loading_;  // last: its end is awaited first
};

}  // namespace gpipe::data
