#include "gpipe/runtime/step/stage_workers.h"

#include <exception>
#include <utility>

#include "gpipe/libtorch/interceptor.h"

namespace gpipe::internal {

StageWorkers::StageWorkers(std::vector<Partition> partitions, Unsplit unsplit,
                           std::vector<int> rank_of_stage,
                           std::vector<c10::Device> devices, int threads,
                           bool one_at_a_time, int other_workers)
    : stages_(std::move(partitions), std::move(rank_of_stage)),
      executor_(std::move(devices), threads, one_at_a_time, other_workers) {
  check_interceptors(Interceptor::kCell);
  stages_.unsplit = std::move(unsplit);
}

std::unique_lock<std::mutex> StageWorkers::enter() {
  executor_.check_caller();
  return std::unique_lock<std::mutex>(running_);
}

void StageWorkers::run(const Plan& plan, Actor& actor, Recording* recording) {
  auto error = executor_.run(plan, actor, recording);
  set_failure(error ? std::make_optional(std::move(error->failure))
                    : std::nullopt);
  if (error) std::rethrow_exception(error->exception);
}

void StageWorkers::set_failure(std::optional<Failure> failure) {
  std::lock_guard<std::mutex> lock(failure_mutex_);
  failure_ = std::move(failure);
}

std::optional<Failure> StageWorkers::last_failure() const {
  std::lock_guard<std::mutex> lock(failure_mutex_);
  return failure_;
}

}  // namespace gpipe::internal
