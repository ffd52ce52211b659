// The tasks for images: classification and binary segmentation.
#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "training/data/augment.h"
#include "training/data/checksum.h"
#include "training/data/drawn.h"
#include "training/data/image_dataset.h"
#include "training/data/mask_folder.h"
#include "training/data/random.h"
#include "training/data/skip_broken.h"
#include "training/program/tasks.h"

namespace gpipe::train_program {
namespace {

namespace F = torch::nn::functional;

// A reader of files that skips broken ones (--skip_broken) or throws.
// Thread-safe.
class FileReader {
 public:
  // `skip`: whether to skip broken files. Otherwise reading one throws
  // c10::ValueError. `size`: the number of files in the data set.
  FileReader(bool skip, int64_t size)
      : skip_(skip),
        broken_(size, [this](const std::string& broken) { note(broken); }) {}

  // Read as the functions of data::BrokenFiles with the same names.
  template <typename Get>
  auto read(int64_t index, const Get& get) {
    if (skip_) return broken_.read(index, get);
    return with_advice([&] { return get(index); });
  }
  template <typename Get>
  auto read_or_none(int64_t index, const Get& get)
      -> std::optional<decltype(get(index))> {
    if (skip_) return broken_.read_or_none(index, get);
    return with_advice([&] { return get(index); });
  }

  // Returns one line for each file skipped since the last call.
  std::vector<std::string> take_warnings() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(warnings_, {});
  }

 private:
  template <typename Read>
  static auto with_advice(const Read& read) {
    try {
      return read();
    } catch (const c10::ValueError& error) {
      C10_THROW_ERROR(ValueError, std::string(error.what_without_backtrace()) +
                                      "; --skip_broken skips such files");
    }
  }

  void note(const std::string& broken) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++left_out_;
    warnings_.push_back("skipped, number " + std::to_string(left_out_) + ": " +
                        broken);
  }

  const bool skip_;
  std::mutex mutex_;
  int64_t left_out_ = 0;
  std::vector<std::string> warnings_;
  data::BrokenFiles broken_;
};

// The parts of a task that do not depend on what the images stand for.
class ImageTask : public ModelTask {
 public:
  std::string rows_name() const override { return "images"; }

  int64_t train_batches() const override { return epochs_.batches(); }
  int64_t test_batches() const override { return batches_of(test_images_); }

  std::vector<std::string> take_warnings() override {
    auto all = train_files_.take_warnings();
    for (auto& each : test_files_.take_warnings()) all.push_back(each);
    return all;
  }

 protected:
  ImageTask(Options fitted, std::shared_ptr<ModelSource> source,
            const Measures& measures, int64_t train_images, int64_t test_images)
      : ModelTask(std::move(fitted), std::move(source), measures),
        test_images_(test_images),
        train_files_(options().skip_broken, train_images),
        test_files_(options().skip_broken, test_images),
        epochs_(train_images, options()) {
    check_at_least("size", options().size, 0);
  }

  // Calls use(item, seed) for the items of a mini-batch of training. The seed
  // differs from item to item, and from epoch to epoch.
  template <typename Use>
  void for_each_train_item(int64_t index, Rows rows, const Use& use) {
    const auto items = epochs_.at(index, rows);
    for (const int64_t item : items.indices) {
      train_files_.read(
          item, [&](int64_t k) { use(k, data::mix_seed(items.seed, k)); });
    }
  }

  // Calls use(found) for the images of a mini-batch of the test set. `found`:
  // what get(item) returns, or nullopt for a broken file.
  template <typename Get, typename Use>
  void for_each_test_item(int64_t index, const Get& get, const Use& use) {
    const Rows items = rows_of(index, test_images_);
    for (int64_t k = items.begin; k < items.end; ++k) {
      use(test_files_.read_or_none(k, get));
    }
  }

  FileReader& train_files() { return train_files_; }

 private:
  const int64_t test_images_;
  FileReader train_files_, test_files_;
  Epochs epochs_;
};

std::string size_text(int64_t size) {
  return std::to_string(size) + " x " + std::to_string(size);
}

// ---- Classification

// The label that cross_entropy() ignores.
constexpr int64_t kNoLabel = -100;

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> indices(static_cast<std::size_t>(end - begin));
  std::iota(indices.begin(), indices.end(), begin);
  return indices;
}

data::Split open_labelled(const Options& options) {
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

class Classification : public ImageTask {
 public:
  Classification(Options fitted, std::shared_ptr<ModelSource> source,
                 data::Split split)
      : ImageTask(std::move(fitted), std::move(source),
                  {loss_of_labels, score_of_labels, "accuracy", accuracy},
                  split.train->size(), split.test->size()),
        split_(std::move(split)),
        augment_(augment_options()) {
    this->source().check_outputs(num_classes(), "classes");
  }

  torch::nn::Sequential model() const override {
    models::ModelOptions sizes = sizes_of(options());
    sizes.classes = num_classes();
    return source().make(sizes);
  }

  std::string data() const override {
    return std::to_string(split_.train->size()) + " images for training and " +
           std::to_string(split_.test->size()) + " for testing, of " +
           std::to_string(num_classes()) + " classes, " +
           size_text(augment_.size);
  }

  uint32_t checksum() const override {
    if (options().data_dir.empty()) return 0;
    return data::checksum_of(std::vector<int64_t>{split_.train->checksum(),
                                                  split_.test->checksum()});
  }

  Sample train_batch(int64_t index, Rows rows) override {
    std::vector<at::Tensor> images;
    std::vector<int64_t> labels;
    for_each_train_item(index, rows, [&](int64_t k, uint64_t seed) {
      const auto found = split_.train->get(k);
      images.push_back(data::augment(found.image, augment_, seed));
      labels.push_back(found.label);
    });
    return {at::stack(images), at::tensor(labels)};
  }

  // Represents an unreadable image by a black one without a label.
  Sample test_batch(int64_t index) override {
    std::vector<at::Tensor> images;
    std::vector<int64_t> labels;
    for_each_test_item(
        index, [&](int64_t item) { return split_.test->get(item); },
        [&](const std::optional<data::LabelledImage>& found) {
          images.push_back(found
                               ? data::prepare(found->image, augment_)
                               : at::zeros({3, augment_.size, augment_.size}));
          labels.push_back(found ? found->label : kNoLabel);
        });
    return {at::stack(images), at::tensor(labels)};
  }

 private:
  int64_t num_classes() const {
    return static_cast<int64_t>(split_.train->classes().size());
  }

  data::AugmentOptions augment_options() {
    data::AugmentOptions augment;
    augment.size = options().size;
    if (augment.size == 0) {
      // Keeps the size of small images (CIFAR-10).
      const auto side = train_files().read(0, [&](int64_t k) {
        const at::Tensor image = split_.train->get(k).image;
        return std::min(image.size(1), image.size(2));
      });
      augment.size = side <= 64 ? side : 224;
    }
    augment.crop = crop_of(options().crop, augment.size);
    augment.flip = options().flip;
    return augment;
  }

  const data::Split split_;
  const data::AugmentOptions augment_;
};

// ---- Segmentation

struct MaskedImages {
  int64_t size;
  uint32_t checksum;
  std::function<data::MaskedImage(int64_t index)> get;
};

MaskedImages open_masked(const Options& options) {
  if (options.data_dir.empty()) {
    return {256, 0, [seed = options.seed](int64_t index) {
              return data::draw_disc(data::mix_seed(seed, 3, index));
            }};
  }
  const data::MaskFolder folder(options.data_dir);
  return {folder.size(), folder.checksum(),
          [folder](int64_t index) { return folder.get(index); }};
}

class Segmentation : public ImageTask {
 public:
  // `held_out`: the number of test images.
  Segmentation(Options fitted, std::shared_ptr<ModelSource> source,
               MaskedImages images, int64_t held_out)
      : ImageTask(
            std::move(fitted), std::move(source),
            {loss_of_masks, score_of_masks, "dice",
             [](const Score& score) { return score.value / score.items; }},
            images.size - held_out, held_out),
        images_(std::move(images)),
        held_out_(held_out),
        order_(data::permutation(images_.size, options().seed)) {
    augment_.size = options().size > 0 ? options().size : 64;
    augment_.flip = options().flip;
  }

  std::string data() const override {
    return std::to_string(images_.size - held_out_) +
           " images with masks for training and " + std::to_string(held_out_) +
           " for testing, " + size_text(augment_.size);
  }

  uint32_t checksum() const override { return images_.checksum; }

  Sample train_batch(int64_t index, Rows rows) override {
    std::vector<at::Tensor> inputs, masks;
    for_each_train_item(index, rows, [&](int64_t k, uint64_t seed) {
      const auto found = images_.get(order_[held_out_ + k]);
      const auto sample = data::augment(found, augment_, seed);
      inputs.push_back(sample.image);
      masks.push_back(sample.mask);
    });
    return {at::stack(inputs), at::stack(masks)};
  }

  // Represents an unreadable image by a grey one with a negative mask.
  Sample test_batch(int64_t index) override {
    const int64_t size = augment_.size;
    std::vector<at::Tensor> inputs, masks;
    for_each_test_item(
        index,
        [&](int64_t item) {
          return data::prepare(images_.get(order_[item]), augment_);
        },
        [&](const std::optional<data::MaskedSample>& found) {
          inputs.push_back(found ? found->image : at::zeros({3, size, size}));
          masks.push_back(found ? found->mask
                                : at::full({1, size, size}, -1.0));
        });
    return {at::stack(inputs), at::stack(masks)};
  }

 private:
  const MaskedImages images_;
  const int64_t held_out_;  // number of test images, the first in `order_`
  const std::vector<int64_t> order_;
  data::AugmentMaskOptions augment_;
};

}  // namespace

std::unique_ptr<Task> classification(const Options& options,
                                     std::shared_ptr<ModelSource> source) {
  Options fitted = source->fitted(options);
  return std::make_unique<Classification>(std::move(fitted), std::move(source),
                                          open_labelled(options));
}

at::Tensor in_full_precision(const at::Tensor& output) {
  return output.to(at::promote_types(output.scalar_type(), at::kFloat));
}

namespace {

// The dimensions are flattened, so that others of as many elements would pair
// labels with the logits of other places.
void check_labels(const at::Tensor& output, const at::Tensor& target) {
  TORCH_CHECK_VALUE(
      output.dim() > 0 &&
          output.sizes().slice(0, output.dim() - 1) == target.sizes(),
      "the labels are ", target.sizes(), ", but the model returns ",
      output.sizes(), " for them; give a label for each list of logits");
}

}  // namespace

WeightedLoss loss_of_labels(const at::Tensor& output,
                            const at::Tensor& target) {
  check_labels(output, target);
  const at::Tensor labels = target.to(output.device());
  WeightedLoss loss;
  loss.sum = F::cross_entropy(
      in_full_precision(output).flatten(0, -2), labels.flatten(),
      F::CrossEntropyFuncOptions().ignore_index(kNoLabel).reduction(
          torch::kSum));
  loss.weight = labels.ne(kNoLabel).sum();
  return loss;
}

Score score_of_labels(const at::Tensor& output, const at::Tensor& target) {
  check_labels(output, target);
  const at::Tensor logits = in_full_precision(output).flatten(0, -2);
  const at::Tensor labels = target.flatten();
  const at::Tensor losses = F::cross_entropy(
      logits, labels, F::CrossEntropyFuncOptions().reduction(torch::kNone));
  Score score;
  score.items = labels.ge(0).sum().item<double>();
  score.loss = losses.to(at::kDouble).sum().item<double>();
  score.value = logits.argmax(1).eq(labels).sum().item<double>();
  return score;
}

double accuracy(const Score& score) { return 100 * score.value / score.items; }

std::unique_ptr<Task> segmentation(const Options& options,
                                   std::shared_ptr<ModelSource> source) {
  Options fitted = source->fitted(options);
  MaskedImages images = open_masked(options);
  const int64_t held_out = held_out_of(images.size, options.held_out, "images");
  return std::make_unique<Segmentation>(std::move(fitted), std::move(source),
                                        std::move(images), held_out);
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
