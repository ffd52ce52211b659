#include "training/data/image_dataset.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "training/data/checksum.h"
#include "training/data/random.h"

namespace gpipe::data {
namespace {

class Subset : public ImageDataset {
 public:
  Subset(std::shared_ptr<const ImageDataset> all, std::vector<int64_t> indices)
      : all_(std::move(all)), indices_(std::move(indices)) {}

  int64_t size() const override {
    return static_cast<int64_t>(indices_.size());
  }
  LabelledImage get(int64_t index) const override {
    return all_->get(indices_.at(index));
  }
  const std::vector<std::string>& classes() const override {
    return all_->classes();
  }
  uint32_t checksum() const override {
    return checksum_of(indices_, all_->checksum());
  }

 private:
  std::shared_ptr<const ImageDataset> all_;
  std::vector<int64_t> indices_;
};

}  // namespace

std::shared_ptr<ImageDataset> subset(std::shared_ptr<const ImageDataset> all,
                                     std::vector<int64_t> indices) {
  return std::make_shared<Subset>(std::move(all), std::move(indices));
}

Split hold_out(std::shared_ptr<const ImageDataset> all,
               const std::vector<int64_t>& labels, double held_out,
               uint64_t seed) {
  TORCH_CHECK_VALUE(held_out > 0 && held_out < 1, "held_out is ", held_out,
                    "; expected a fraction in (0, 1)");
  TORCH_CHECK_VALUE(static_cast<int64_t>(labels.size()) == all->size(),
                    labels.size(), " labels for ", all->size(), " images");
  std::vector<std::vector<int64_t>> by_class(all->classes().size());
  for (size_t i = 0; i < labels.size(); ++i) {
    by_class.at(labels[i]).push_back(static_cast<int64_t>(i));
  }
  std::vector<int64_t> train;
  std::vector<int64_t> test;
  for (size_t label = 0; label < by_class.size(); ++label) {
    const auto& images = by_class[label];
    const auto n = static_cast<int64_t>(images.size());
    int64_t taken = std::llround(held_out * static_cast<double>(n));
    if (n > 1) taken = std::clamp<int64_t>(taken, 1, n - 1);
    const auto order = permutation(n, mix_seed(seed, label));
    for (int64_t i = 0; i < n; ++i) {
      (i < taken ? test : train).push_back(images[order[i]]);
    }
  }
  std::sort(train.begin(), train.end());
  std::sort(test.begin(), test.end());
  return {subset(all, std::move(train)), subset(all, std::move(test))};
}

}  // namespace gpipe::data
