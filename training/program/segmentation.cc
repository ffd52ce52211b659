#include "training/program/segmentation.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "training/data/augment.h"
#include "training/data/drawn.h"
#include "training/data/mask_folder.h"
#include "training/data/random.h"
#include "training/program/broken_file_policy.h"
#include "training/program/epochs.h"

namespace gpipe::train_program {
namespace {

namespace F = torch::nn::functional;

struct Images {
  int64_t size;
  uint32_t checksum;
  std::function<data::MaskedImage(int64_t index)> get;
};

Images open(const Options& options) {
  if (options.data_dir.empty()) {
    return {256, 0, [seed = options.seed](int64_t index) {
              return data::draw_disc(data::mix_seed(seed, 3, index));
            }};
  }
  const data::MaskFolder folder(options.data_dir);
  return {folder.size(), folder.checksum(),
          [folder](int64_t index) { return folder.get(index); }};
}

class Segmentation : public Task {
 public:
  Segmentation(const Options& options, std::shared_ptr<ModelSource> source)
      : source_(std::move(source)),
        options_(source_->fitted(options)),
        images_(open(options)),
        held_out_(held_out_of(images_.size, options.held_out, "images")),
        order_(data::permutation(images_.size, options.seed)),
        train_files_(options.skip_broken, images_.size - held_out_),
        test_files_(options.skip_broken, held_out_),
        epochs_(images_.size - held_out_, options) {
    augment_.size = options_.size > 0 ? options_.size : 64;
    augment_.flip = options.flip;
  }

  ModelSource& source() const override { return *source_; }

  torch::nn::Sequential model() const override {
    return source_->make(sizes_of(options_));
  }

  std::string data() const override {
    return std::to_string(images_.size - held_out_) +
           " images with masks for training and " + std::to_string(held_out_) +
           " for testing, " + std::to_string(augment_.size) + " x " +
           std::to_string(augment_.size);
  }

  uint32_t checksum() const override { return images_.checksum; }

  std::string rows_name() const override { return "images"; }

  int64_t train_batches() const override { return epochs_.batches(); }
  int64_t test_batches() const override {
    return (held_out_ + options_.batch - 1) / options_.batch;
  }

  Sample train_batch(int64_t index, Rows rows) override {
    const auto items = epochs_.at(index, rows);
    std::vector<at::Tensor> inputs, masks;
    for (const int64_t item : items.indices) {
      train_files_.read(item, [&](int64_t k) {
        const auto found = images_.get(order_[held_out_ + k]);
        const auto sample =
            data::augment(found, augment_, data::mix_seed(items.seed, k));
        inputs.push_back(sample.image);
        masks.push_back(sample.mask);
      });
    }
    return {at::stack(inputs), at::stack(masks)};
  }

  // Represents an unreadable image by a grey one with a negative mask.
  Sample test_batch(int64_t index) override {
    const int64_t begin = index * options_.batch;
    const int64_t end = std::min(begin + options_.batch, held_out_);
    const int64_t size = augment_.size;
    std::vector<at::Tensor> inputs, masks;
    for (int64_t k = begin; k < end; ++k) {
      const auto found = test_files_.read_or_none(k, [&](int64_t item) {
        return data::prepare(images_.get(order_[item]), augment_);
      });
      inputs.push_back(found ? found->image : at::zeros({3, size, size}));
      masks.push_back(found ? found->mask : at::full({1, size, size}, -1.0));
    }
    return {at::stack(inputs), at::stack(masks)};
  }

  WeightedLoss loss(const at::Tensor& output,
                    const at::Tensor& target) const override {
    return loss_of_masks(output, target);
  }

  Score score(const at::Tensor& output,
              const at::Tensor& target) const override {
    return score_of_masks(output, target);
  }

  std::string metric_name() const override { return "dice"; }
  double metric(const Score& score) const override {
    return score.value / score.items;
  }

  std::vector<std::string> take_warnings() override {
    auto all = train_files_.take_warnings();
    for (auto& each : test_files_.take_warnings()) all.push_back(each);
    return all;
  }

 private:
  const std::shared_ptr<ModelSource> source_;
  const Options options_;
  const Images images_;
  const int64_t held_out_;  // number of test images, the first in `order_`
  const std::vector<int64_t> order_;
  BrokenFilePolicy train_files_, test_files_;
  Epochs epochs_;
  data::AugmentMaskOptions augment_;
};

}  // namespace

std::unique_ptr<Task> segmentation(const Options& options,
                                   std::shared_ptr<ModelSource> source) {
  return std::make_unique<Segmentation>(options, std::move(source));
}

WeightedLoss loss_of_masks(const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor mask = target.to(output.device());
  const at::Tensor counts = mask.ge(0);
  WeightedLoss loss;
  loss.sum = F::binary_cross_entropy_with_logits(
      output.to(at::kFloat), mask,
      F::BinaryCrossEntropyWithLogitsFuncOptions()
          .weight(counts.to(at::kFloat))
          .reduction(torch::kSum));
  loss.weight = counts.sum();
  return loss;
}

Score score_of_masks(const at::Tensor& output, const at::Tensor& target) {
  Score score;
  const at::Tensor dice = data::dice(output, target);
  for (int64_t i = 0; i < target.size(0); ++i) {
    const at::Tensor mask = target[i].to(at::kDouble);
    if (mask.lt(0).any().item<bool>()) continue;
    const at::Tensor logits = output[i].to(at::kDouble);
    score.items += 1;
    score.loss +=
        F::binary_cross_entropy_with_logits(logits, mask).item<double>();
    score.value += dice[i].item<double>();
  }
  return score;
}

}  // namespace gpipe::train_program
