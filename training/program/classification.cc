#include "training/program/classification.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "training/data/augment.h"
#include "training/data/checksum.h"
#include "training/data/drawn.h"
#include "training/data/image_dataset.h"
#include "training/data/random.h"
#include "training/program/broken_file_policy.h"
#include "training/program/epochs.h"

namespace gpipe::train_program {
namespace {

namespace F = torch::nn::functional;

// The label that cross_entropy() ignores.
constexpr int64_t kNoLabel = -100;

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> indices(static_cast<std::size_t>(end - begin));
  std::iota(indices.begin(), indices.end(), begin);
  return indices;
}

data::Split open(const Options& options) {
  if (!options.data_dir.empty()) {
    return data::open_images(options.data_dir, options.held_out, options.seed);
  }
  constexpr int64_t kTrain = 2048, kTest = 256, kSide = 32;
  const auto shapes = std::make_shared<data::Shapes>(
      kTrain + kTest, options.size > 0 ? options.size : kSide, options.seed);
  return {data::subset(shapes, range(0, kTrain)),
          data::subset(shapes, range(kTrain, kTrain + kTest))};
}

data::Crop crop_of(const std::string& name, int64_t size) {
  if (name == "none") return data::Crop::kNone;
  if (name == "padded") return data::Crop::kPadded;
  if (name == "resized") return data::Crop::kResized;
  TORCH_CHECK_VALUE(name == "auto", "--crop=", name,
                    ": must be auto, none, padded or resized");
  return size > 64 ? data::Crop::kResized : data::Crop::kPadded;
}

class Classification : public Task {
 public:
  Classification(const Options& options, std::shared_ptr<ModelSource> source)
      : source_(std::move(source)),
        options_(source_->fitted(options)),
        split_(open(options)),
        train_files_(options.skip_broken, split_.train->size()),
        test_files_(options.skip_broken, split_.test->size()),
        epochs_(split_.train->size(), options),
        augment_(augment_options()) {
    source_->check_outputs(num_classes(), "classes");
  }

  ModelSource& source() const override { return *source_; }

  torch::nn::Sequential model() const override {
    models::ModelOptions options = sizes_of(options_);
    options.classes = num_classes();
    return source_->make(options);
  }

  std::string data() const override {
    return std::to_string(split_.train->size()) + " images for training and " +
           std::to_string(split_.test->size()) + " for testing, of " +
           std::to_string(num_classes()) + " classes, " +
           std::to_string(augment_.size) + " x " +
           std::to_string(augment_.size);
  }

  uint32_t checksum() const override {
    if (options_.data_dir.empty()) return 0;
    return data::checksum_of(std::vector<int64_t>{split_.train->checksum(),
                                                  split_.test->checksum()});
  }

  std::string rows_name() const override { return "images"; }

  int64_t train_batches() const override { return epochs_.batches(); }
  int64_t test_batches() const override {
    return (split_.test->size() + options_.batch - 1) / options_.batch;
  }

  Sample train_batch(int64_t index, Rows rows) override {
    const auto items = epochs_.at(index, rows);
    std::vector<at::Tensor> images;
    std::vector<int64_t> labels;
    for (const int64_t item : items.indices) {
      train_files_.read(item, [&](int64_t k) {
        const auto found = split_.train->get(k);
        images.push_back(data::augment(found.image, augment_,
                                       data::mix_seed(items.seed, k)));
        labels.push_back(found.label);
      });
    }
    return {at::stack(images), at::tensor(labels)};
  }

  // Represents an unreadable image by a black one without a label.
  Sample test_batch(int64_t index) override {
    const int64_t begin = index * options_.batch;
    const int64_t end = std::min(begin + options_.batch, split_.test->size());
    std::vector<at::Tensor> images;
    std::vector<int64_t> labels;
    for (int64_t k = begin; k < end; ++k) {
      const auto found = test_files_.read_or_none(
          k, [&](int64_t item) { return split_.test->get(item); });
      images.push_back(found ? data::prepare(found->image, augment_)
                             : at::zeros({3, augment_.size, augment_.size}));
      labels.push_back(found ? found->label : kNoLabel);
    }
    return {at::stack(images), at::tensor(labels)};
  }

  WeightedLoss loss(const at::Tensor& output,
                    const at::Tensor& target) const override {
    return loss_of_labels(output, target);
  }

  Score score(const at::Tensor& output,
              const at::Tensor& target) const override {
    return score_of_labels(output, target);
  }

  std::string metric_name() const override { return "accuracy"; }
  double metric(const Score& score) const override {
    return 100 * score.value / score.items;
  }

  std::vector<std::string> take_warnings() override {
    auto all = train_files_.take_warnings();
    for (auto& each : test_files_.take_warnings()) all.push_back(each);
    return all;
  }

 private:
  int64_t num_classes() const {
    return static_cast<int64_t>(split_.train->classes().size());
  }

  data::AugmentOptions augment_options() {
    data::AugmentOptions augment;
    augment.size = options_.size;
    if (augment.size == 0) {
      // Keeps the size of small images (CIFAR-10).
      const auto side = train_files_.read(0, [&](int64_t k) {
        const at::Tensor image = split_.train->get(k).image;
        return std::min(image.size(1), image.size(2));
      });
      augment.size = side <= 64 ? side : 224;
    }
    augment.crop = crop_of(options_.crop, augment.size);
    augment.flip = options_.flip;
    return augment;
  }

  const std::shared_ptr<ModelSource> source_;
  const Options options_;
  const data::Split split_;
  BrokenFilePolicy train_files_, test_files_;
  Epochs epochs_;
  const data::AugmentOptions augment_;
};

}  // namespace

std::unique_ptr<Task> classification(const Options& options,
                                     std::shared_ptr<ModelSource> source) {
  return std::make_unique<Classification>(options, std::move(source));
}

WeightedLoss loss_of_labels(const at::Tensor& output,
                            const at::Tensor& target) {
  const at::Tensor labels = target.to(output.device());
  WeightedLoss loss;
  loss.sum = F::cross_entropy(
      output.to(at::kFloat), labels,
      F::CrossEntropyFuncOptions().ignore_index(kNoLabel).reduction(
          torch::kSum));
  loss.weight = labels.ne(kNoLabel).sum();
  return loss;
}

Score score_of_labels(const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor logits = output.to(at::kFloat);
  const at::Tensor losses = F::cross_entropy(
      logits, target, F::CrossEntropyFuncOptions().reduction(torch::kNone));
  Score score;
  score.items = target.ge(0).sum().item<double>();
  score.loss = losses.to(at::kDouble).sum().item<double>();
  score.value = logits.argmax(1).eq(target).sum().item<double>();
  return score;
}

}  // namespace gpipe::train_program
