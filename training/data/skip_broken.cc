#include "training/data/skip_broken.h"

#include <utility>

namespace gpipe::data {

BrokenFiles::BrokenFiles(int64_t size, ReportBroken report)
    : size_(size), report_(std::move(report)) {}

int64_t BrokenFiles::count() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(indices_.size());
}

bool BrokenFiles::known(int64_t index) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return indices_.count(index) > 0;
}

void BrokenFiles::found(int64_t index, const std::string& what) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (indices_.insert(index).second && report_) report_(what);
}

void BrokenFiles::throw_all_broken(const std::string& last) const {
  TORCH_CHECK_VALUE(false, "none of ", size_, " elements can be read",
                    last.empty() ? "" : "; one of them: ", last);
}

SkipBroken::SkipBroken(std::shared_ptr<const ImageDataset> all,
                       ReportBroken report)
    : all_(std::move(all)), broken_(all_->size(), std::move(report)) {}

LabelledImage SkipBroken::get(int64_t index) const {
  return broken_.read(index, [this](int64_t k) { return all_->get(k); });
}

}  // namespace gpipe::data
