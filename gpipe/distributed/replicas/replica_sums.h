// Sums of gradients over replicas, computed while the step still runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "gpipe/distributed/replicas/reduce.h"
#include "gpipe/distributed/world/communicator.h"
#include "gpipe/distributed/world/transport.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/run/worker.h"

namespace gpipe::internal {

// The sums of a step's gradients over all replicas, on a thread of its own.
//
// Parameters are cut into buckets, in the order in which backwards complete
// their gradients: the last stage first, and within a stage the last parameter
// first. A bucket is added up as soon as its gradients are complete, while
// other stages, and earlier layers of the same stage, still run their last
// backward. torch.nn.parallel.DistributedDataParallel does so for one stage.
//
// Threads: give() and close() may be called from any thread, but one at a time
// for each stage. All other methods: from one thread.
class ReplicaSums {
 public:
  // `members`, `share`, `method`: as for Reducer.
  ReplicaSums(Communicator& world, Transport& transport,
              std::vector<int> members, int tag,
              SumShare share = SumShare::kAll,
              int64_t bucket_bytes = kBucketBytes,
              SumMethod method = SumMethod::kMemberOrder);
  ~ReplicaSums();

  struct Parameter {
    int64_t stage;
    at::Tensor tensor;
  };
  // Begins a step with these parameters in this order; all are different. Stops
  // the step before.
  void begin(std::vector<Parameter> parameters);

  // Hands over the gradient of a parameter, which is complete after the event
  // `made`; moves from `grad`. Returns false and does nothing if `parameter` is
  // not among the parameters. Throws c10::Error if it was given before, or if
  // its stage was closed.
  bool give(const at::Tensor& parameter, at::Tensor& grad, const Event& made);
  // Declares that the parameters of `stage` that were not given have no
  // gradient on this rank.
  void close(int64_t stage);

  // Return how many buckets have been added up, and how many there are.
  std::size_t done() const;
  std::size_t buckets() const;

  // Blocks until all buckets have been added up. Returns the sums with their
  // parameters, for use on this thread's current streams. A sum is undefined if
  // no replica has a gradient. Call it once in a step. Throws PeerError or
  // c10::Error, see Reducer.
  std::vector<Summand> finish();

  // The time of a bucket's sum.
  struct BucketTime {
    std::chrono::steady_clock::time_point start, end;
    int64_t bytes = 0;  // of the gradients
  };
  // Returns the times of this step's sums, after finish().
  const std::vector<BucketTime>& times() const { return times_; }

  // Returns the reducer, for use between the steps.
  Reducer& reducer() { return reducer_; }

  // Ends the step: adds up no further bucket. Blocks until the current one is
  // complete, or the world has failed.
  void stop();

 private:
  // The thread's task: adds up all buckets of the step.
  void add_up();
  // Blocks until the thread's task has ended, if it was begun.
  void join();
  // Makes this thread's current stream wait for gradient `k`, and records its
  // use there.
  void use(std::size_t k);

  Reducer reducer_;
  const int64_t bucket_bytes_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Summand> summands_;
  std::vector<std::size_t> ends_;  // of buckets
  // The states of the summands, by index.
  struct State {
    int64_t stage = 0;
    // The gradient was given, or its stage was closed.
    bool there = false;
    Event made;  // after the gradient, later after the sum
  };
  std::vector<State> states_;
  // The index of each parameter in `summands_`.
  std::unordered_map<at::TensorImpl*, std::size_t> numbers_;
  std::size_t done_ = 0;
  std::vector<BucketTime> times_;
  bool running_ = false, stopped_ = false;
  std::exception_ptr error_;

  const std::unique_ptr<Worker> worker_;  // last: its thread must end first
};

}  // namespace gpipe::internal
