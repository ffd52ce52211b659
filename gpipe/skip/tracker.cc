#include "gpipe/skip/tracker.h"

#include <c10/util/Exception.h>

#include <map>
#include <utility>

namespace gpipe::internal {
namespace {

// The tracker of a thread outside of pipelines.
class ThreadTracker : public SkipTracker {
 public:
  void save(const SkipKey& key, std::optional<at::Tensor> tensor) override {
    tensors_[key] = std::move(tensor);
  }

  std::optional<at::Tensor> load(const SkipKey& key) override {
    auto found = tensors_.find(key);
    if (found == tensors_.end()) throw_not_stashed(key);
    std::optional<at::Tensor> tensor = std::move(found->second);
    tensors_.erase(found);
    return tensor;
  }

 private:
  std::map<SkipKey, std::optional<at::Tensor>> tensors_;
};

thread_local SkipTracker* scoped = nullptr;

}  // namespace

void SkipTracker::throw_not_stashed(const SkipKey& key) {
  TORCH_CHECK(false, "'", key.name, "' has not been stashed");
}

SkipTracker& current_skip_tracker() {
  if (scoped) return *scoped;
  // Constructed on first use: threads without skip tensors pay nothing, and the
  // only object left to destroy at thread exit is this thread's map.
  thread_local ThreadTracker own;
  return own;
}

UseSkipTracker::UseSkipTracker(SkipTracker& tracker)
    : previous_(std::exchange(scoped, &tracker)) {}

UseSkipTracker::~UseSkipTracker() { scoped = previous_; }

}  // namespace gpipe::internal
