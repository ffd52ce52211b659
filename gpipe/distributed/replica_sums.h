// Sums of gradients over replicas, made while the step still runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "gpipe/distributed/carrier.h"
#include "gpipe/distributed/reduce.h"
#include "gpipe/distributed/world.h"
#include "gpipe/runtime/stream.h"
#include "gpipe/runtime/worker.h"

namespace gpipe {

// Parameters go around in buckets, in the order in which backwards complete
// their gradients: of the last stage first, and of a stage the last one first.
// A bucket goes once its gradients are there, while other stages, and layers
// before in the same stage, have their last backward; as
// torch.nn.parallel.DistributedDataParallel does for one stage.
//
// Threads: give() and close() from any, one at a time for a stage; the others
// from one. A thread of its own adds up.
class ReplicaSums {
 public:
  // `members`: as Reducer's.
  ReplicaSums(World& world, Carrier& carrier, std::vector<int> members, int tag,
              int64_t bucket_bytes = kBucketBytes);
  ~ReplicaSums();

  struct Parameter {
    int64_t stage;
    at::Tensor tensor;
  };
  // A step begins, with these parameters in this order, all different.
  void begin(std::vector<Parameter> parameters);

  // The gradient of a parameter is complete at `made`. False, and nothing else,
  // for a tensor that is none of the parameters. c10::Error if it was given
  // before, or its stage was closed.
  bool give(const at::Tensor& parameter, at::Tensor& grad, const Moment& made);
  // The parameters of the stage that have not been given have no gradient here.
  void close(int64_t stage);

  // How many buckets have been added up so far, of how many.
  std::size_t done() const;
  std::size_t buckets() const;

  // Waits until all have been added up. Gives the sums, by parameter, undefined
  // for those that have no gradient anywhere, for use on this thread's current
  // streams. Once. PeerError, c10::Error: see Reducer.
  std::vector<Summand> finish();

  // Nothing more will be given; forgets the step, once what goes around has
  // come, or the world has failed.
  void stop();

 private:
  void add_up();
  void use(std::size_t k);

  Reducer reducer_;
  const int64_t bucket_bytes_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Summand> summands_;
  std::vector<std::size_t> ends_;  // of buckets
  // By summand.
  struct State {
    int64_t stage = 0;
    bool there = false;
    Moment made;  // of the gradient, and then of the sum
  };
  std::vector<State> states_;
  std::unordered_map<at::TensorImpl*, std::size_t> numbers_;
  std::size_t done_ = 0;
  bool running_ = false, stopped_ = false;
  std::exception_ptr error_;

  const std::unique_ptr<Worker> worker_;  // last: it ends first
};

}  // namespace gpipe
