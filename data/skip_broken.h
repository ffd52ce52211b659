// Sets of files some of which are broken.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "data/image_dataset.h"

namespace gpipe::data {

// Is told of a broken file, once, in a line that names it and says what is
// wrong. Threads: whichever read it, one at a time.
using ReportBroken = std::function<void(const std::string&)>;

// Which elements of a set cannot be read, as far as they have been asked for.
// Files are found to be broken when they are read, since reading all of them
// before takes as long as an epoch does.
//
//   BrokenFiles broken(folder.size(), report);
//   auto pair = broken.read(i, [&](int64_t k) { return folder.get(k); });
//
// Threads: any.
class BrokenFiles {
 public:
  // Of a set of `size` elements. `report` may be empty.
  BrokenFiles(int64_t size, ReportBroken report);

  // get(index), or, if that throws a c10::ValueError, get() of the next index
  // that does not; after the last comes the first. So an index gives the same
  // element at all times, and one that follows broken ones is seen more often.
  // c10::ValueError if all are broken, with what is wrong with one of them.
  // Other exceptions go through.
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

  // get(index), or nullopt if that throws a c10::ValueError: for a test, in
  // which no element may count twice.
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

  // How many have been found so far.
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

// `all`, where a broken image is replaced by the next one, with its label; see
// BrokenFiles. Of a Split: each part for itself, so that no image of one comes
// into the other.
class SkipBroken : public ImageDataset {
 public:
  SkipBroken(std::shared_ptr<const ImageDataset> all, ReportBroken report);

  int64_t size() const override { return all_->size(); }
  LabelledImage get(int64_t index) const override;
  const std::vector<std::string>& classes() const override {
    return all_->classes();
  }
  uint32_t checksum() const override { return all_->checksum(); }

  // How many images have been found to be broken so far.
  int64_t broken() const { return broken_.count(); }

 private:
  std::shared_ptr<const ImageDataset> all_;
  mutable BrokenFiles broken_;
};

}  // namespace gpipe::data
