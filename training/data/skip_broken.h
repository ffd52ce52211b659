// Replaces or leaves out broken files of a dataset.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "training/data/image_dataset.h"

namespace gpipe::data {

// A function that is called once for each broken file, with a line that names
// the file and the error.
// Threads: called on the thread that read the file, by one thread at a time. It
// must not call the BrokenFiles.
using ReportBroken = std::function<void(const std::string&)>;

// The elements of a set that could not be read so far. Broken files are found
// when they are read, because reading all of them in advance takes as long as
// an epoch.
//
//   BrokenFiles broken(folder.size(), report);
//   auto pair = broken.read(i, [&](int64_t k) { return folder.get(k); });
//
// Thread-safe.
class BrokenFiles {
 public:
  // `size`: number of elements of the set. `report`: may be empty.
  BrokenFiles(int64_t size, ReportBroken report);

  // Returns get(index). If that throws c10::ValueError, returns get() of the
  // next index that can be read; index 0 follows the last one. So an index
  // always gives the same element, and an element that follows broken ones is
  // used more often.
  //
  // Throws c10::ValueError if all elements are broken; the text has the error
  // of one of them. Other exceptions pass through.
  template <typename Get>
  auto read(int64_t index, const Get& get) {
    std::string last;
    for (int64_t k = 0; k < size_; ++k) {
      const int64_t at = (index + k) % size_;
      if (known(at)) continue;
      try {
        return get(at);
      } catch (const c10::ValueError& error) {
        last = error.what_without_backtrace();
        found(at, last);
      }
    }
    throw_all_broken(last);
  }

  // Returns get(index), or nullopt if that throws c10::ValueError. For tests,
  // in which no element may count twice.
  template <typename Get>
  auto read_or_none(int64_t index, const Get& get)
      -> std::optional<decltype(get(index))> {
    try {
      if (!known(index)) return get(index);
    } catch (const c10::ValueError& error) {
      found(index, error.what_without_backtrace());
    }
    return std::nullopt;
  }

  // Returns the number of broken elements found so far.
  int64_t count() const;

 private:
  bool known(int64_t index) const;
  void found(int64_t index, const std::string& what);
  [[noreturn]] void throw_all_broken(const std::string& last) const;

  const int64_t size_;
  const ReportBroken report_;
  mutable std::mutex mutex_;
  std::set<int64_t> indices_;
};

// A dataset like `all`, but a broken image is replaced by the next one and its
// label; see BrokenFiles. Wrap the two parts of a Split separately, so that no
// image of one part appears in the other.
class SkipBroken : public ImageDataset {
 public:
  SkipBroken(std::shared_ptr<const ImageDataset> all, ReportBroken report);

  int64_t size() const override { return all_->size(); }
  LabelledImage get(int64_t index) const override;
  const std::vector<std::string>& classes() const override {
    return all_->classes();
  }
  uint32_t checksum() const override { return all_->checksum(); }

  // Returns the number of broken images found so far.
  int64_t broken() const { return broken_.count(); }

 private:
  std::shared_ptr<const ImageDataset> all_;
  mutable BrokenFiles broken_;
};

}  // namespace gpipe::data
