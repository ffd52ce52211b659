#include "data/batch_loader.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "data/shapes.h"

namespace gpipe::data {
namespace {

at::Tensor as_float(const at::Tensor& image, int64_t) {
  return image.to(at::kFloat);
}

TEST(BatchLoaderTest, GivesTheImagesInOrder) {
  const auto shapes = std::make_shared<Shapes>(8, 4, /*seed=*/0);
  BatchLoader loader(shapes, {7, 2, 5, 0, 1}, 2, /*whole_batches=*/false,
                     as_float);
  std::vector<int64_t> labels;
  std::vector<int64_t> rows;
  while (const auto batch = loader.next()) {
    rows.push_back(batch->images.size(0));
    for (int64_t i = 0; i < rows.back(); ++i) {
      labels.push_back(batch->labels[i].item<int64_t>());
      EXPECT_TRUE(at::equal(batch->images[i],
                            as_float(shapes->get(labels.back()).image, 0)));
    }
  }
  EXPECT_EQ(labels, (std::vector<int64_t>{7, 2, 5, 0, 1}));
  EXPECT_EQ(rows, (std::vector<int64_t>{2, 2, 1}));
  EXPECT_FALSE(loader.next().has_value());
}

TEST(BatchLoaderTest, LeavesOutARemainder) {
  const auto shapes = std::make_shared<Shapes>(8, 4, /*seed=*/0);
  BatchLoader loader(shapes, {0, 1, 2, 3, 4}, 2, /*whole_batches=*/true,
                     as_float);
  EXPECT_TRUE(loader.next().has_value());
  EXPECT_TRUE(loader.next().has_value());
  EXPECT_FALSE(loader.next().has_value());
}

TEST(BatchLoaderTest, ThrowsWhatATransformThrows) {
  const auto shapes = std::make_shared<Shapes>(8, 4, /*seed=*/0);
  BatchLoader loader(shapes, {0, 1}, 1, /*whole_batches=*/true,
                     [](const at::Tensor& image, int64_t index) {
                       if (index == 1) throw std::domain_error("image 1");
                       return as_float(image, index);
                     });
  EXPECT_TRUE(loader.next().has_value());
  EXPECT_THROW(loader.next(), std::domain_error);
}

}  // namespace
}  // namespace gpipe::data
