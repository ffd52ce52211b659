// Sums of gradients over replicas, and the shards of parameters whose optimizer
// is spread over replicas.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpipe/distributed/world/communicator.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/run/worker.h"

namespace gpipe::internal {

// One tensor of a sum over ranks. `like` gives its sizes, and the dtype of its
// gradients (Tensor::grad_dtype()). `grad` is this rank's part, on any device;
// undefined counts as zero. `name` is the name of the parameter, or empty for a
// tensor that a layer has captured.
struct Summand {
  at::Tensor like, grad{};
  std::string name{};
};

// The default size of a bucket in bytes: 8 MiB. One bucket is added up at a
// time.
constexpr int64_t kBucketBytes = int64_t{1} << 23;

// Cuts a list into buckets and returns where they end, ascending; the last end
// is the size of the list. All tensors of a bucket have one dtype. A bucket
// ends with the tensor that brings it to at least `bucket_bytes`. Linear time.
std::vector<std::size_t> cut_buckets(const std::vector<Summand>& all,
                                     int64_t bucket_bytes = kBucketBytes);

// Returns the rows that member `k` of `members` owns of a tensor with `sizes`:
// the first one, and their number. Each member owns an equal share of dimension
// 0, give or take one row. A scalar counts as one row.
std::pair<int64_t, int64_t> rows_of_member(at::IntArrayRef sizes,
                                           std::size_t members, std::size_t k);

// Returns these rows of `tensor` as a view; undefined if there are none, or if
// `tensor` is undefined. A tensor without rows is member 0's.
at::Tensor slice_of_member(const at::Tensor& tensor, std::size_t members,
                           std::size_t k);

// The part of each sum that a member of a Reducer gets.
enum class SumShare {
  kAll,  // all of it (an all-reduce)
  // its own rows, see slice_of_member() (a reduce-scatter)
  kOwnRows,
};

// How parts are added.
enum class SumMethod {
  // In the order of the members, so that the sum has the same bits in every
  // run.
  kMemberOrder,
  // By collective operations of the transport, see
  // Transport::has_collectives().
  // Their order may be another one for each element. All members get the same
  // bits.
  kCollective,
};

// A sum of tensors over ranks.
//
// In the order of the members, each member adds up one part of each bucket: it
// receives this part from all others and sends them the sum (a reduce-scatter
// and an all-gather). With n members each one sends 2 (n - 1) / n of the bytes,
// as many as in a ring. But a ring would begin the sums of different parts at
// different members.
//
// Threads: one thread at a time for each `tag`.
class Reducer {
 public:
  // `members`: ranks of the world, at least two, this rank among them; the same
  // list on all of them. Sums are computed on the device of `transport`.
  Reducer(Communicator& world, Transport& transport, std::vector<int> members,
          int tag, SumShare share = SumShare::kAll,
          SumMethod method = SumMethod::kMemberOrder);

  // Checks that all members have lists of the same names, sizes and dtypes.
  // Blocks until all have called. Throws c10::Error on all members, with the
  // first difference, if the lists differ; throws PeerError if the world has
  // failed.
  // `what`: what the list has, such as "gradients". `action`: for errors.
  void agree(const std::vector<Summand>& all, const std::string& what,
             const std::string& action);
  void agree(const std::vector<Summand>& all);  // gradients

  // Replaces the gradients of one bucket by their sums over all members.
  // `begin`, `end`: the bucket, with one dtype. Blocks until all members have
  // called.
  //
  // A gradient that is undefined on all members stays undefined. Others are
  // replaced by new tensors and never written to, since other code may share
  // them. Sparse gradients become dense. With kOwnRows they become this
  // member's rows, or undefined if it has none. Throws PeerError if the world
  // has failed.
  void add_up(Summand* begin, Summand* end);

  // Replaces the values of `tensors` on all members by those of the first
  // member, if they differ. Tensors on the meta device are left out. Blocks
  // until all members have called. Errors: as for agree(), and
  // NotImplementedError for a tensor that is sparse or quantized.
  // `tensors`: parameters and buffers with their names.
  void copy_first(
      const std::vector<std::pair<std::string, at::Tensor>>& tensors);

  // Sends the tensor out(k) to, and receives in(k) from, each other member k,
  // on device(). Blocks until all have arrived. `action`: for errors. Throws
  // PeerError if the world has failed.
  void exchange(const std::function<at::Tensor(std::size_t)>& out,
                const std::function<at::Tensor(std::size_t)>& in,
                const Transport::Action& action);
  c10::Device device() const { return transport_.device(); }

 private:
  // Replaces `flat`, which has one dimension and is on device(), by the sum.
  void all_reduce(const at::Tensor& flat);
  // Returns the sum of the tensors part(own index) of all members. `part` is
  // called on each member for each index; its tensors have one dimension and
  // are on device(), and for one index they have one size. That of the own
  // index may be overwritten.
  at::Tensor reduce_scatter(const std::function<at::Tensor(std::size_t)>& part);

  Communicator& world_;
  Transport& transport_;
  const std::vector<int> members_;
  const int tag_;
  const SumShare share_;
  const SumMethod method_;
  std::size_t own_ = 0;  // this rank's index in `members_`
};

// Runs agree(), then add_up() for each bucket. Does nothing for a single
// member.
void all_reduce(Communicator& world, Transport& transport,
                const std::vector<int>& members, int tag,
                std::vector<Summand>& all, int64_t bucket_bytes = kBucketBytes,
                SumMethod method = SumMethod::kMemberOrder);

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

  // Begins a step with these parameters in this order; all are different, and
  // without their gradients. Stops the step before. `stages`: how many stages
  // of this rank run backwards.
  void begin(std::vector<Summand> parameters, int64_t stages = 1);

  // Hands over the gradient of a parameter, which is complete after the event
  // `made`; moves from `grad`. Returns false and does nothing if `parameter` is
  // not among the parameters. Throws c10::Error if it was given before, or if
  // all stages are closed.
  bool give(const at::Tensor& parameter, at::Tensor& grad, const Event& made);
  // Declares that a stage has given all that it has. After the last stage, the
  // parameters that were not given have no gradient on this rank. (A stage may
  // use a parameter of another one, whose backwards have ended before.)
  void close();

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

  // Ends the step: adds up no further bucket, and releases the gradients.
  // Blocks until the current bucket is complete, or the world has failed.
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
    // The gradient was given, or all stages are closed.
    bool there = false;
    Event made;  // after the gradient, later after the sum
  };
  std::vector<State> states_;
  // The index of each parameter in `summands_`.
  std::unordered_map<at::TensorImpl*, std::size_t> numbers_;
  int64_t open_ = 0;  // stages that are not closed
  std::size_t done_ = 0;
  std::vector<BucketTime> times_;
  bool running_ = false, stopped_ = false;
  std::exception_ptr error_;

  const std::unique_ptr<Worker> worker_;  // last: its thread must end first
};

// The parameters of one rank, each cut along dimension 0 into one shard per
// replica (ZeRO stage 1, Rajbhandari et al., arXiv 1910.02054). The optimizer
// of a replica gets the shards that the replica owns. A shard is a leaf that
// shares the parameter's memory, so a step of the optimizer changes the
// parameter's rows in place. spread() brings the rows of the other replicas.
//
// Not thread-safe.
class ParameterShards {
 public:
  // This replica is member `own` of `members`.
  ParameterShards(const std::vector<at::Tensor>& parameters,
                  std::size_t members, std::size_t own);

  // Adds a parameter, unless it is one already, and notes whether it requires a
  // gradient now. `name`: for errors.
  void add(const at::Tensor& parameter, const std::string& name = "");
  // Removes all parameters. A layer may have replaced some, and may put them
  // back: one that is still in use has the same shard when it is added again.
  void clear();

  // Returns the shards that this replica owns of the parameters that require a
  // gradient, in their order; none for a parameter with fewer rows than
  // replicas, if this replica owns none of them. If a parameter has got other
  // memory (Module::to(dtype)), or has been frozen or unfrozen, its shard
  // follows.
  std::vector<at::Tensor> own();

  // Returns the shard of `parameter`, which follows as in own(); undefined if
  // this replica owns none of its rows.
  at::Tensor shard_of(const at::Tensor& parameter);

  // Clears the gradients of all shards, as Module::zero_grad() does.
  void zero_grad(bool set_to_none);
  // Returns whether `tensor` has a shard, also after clear().
  bool has(const at::Tensor& tensor) const {
    return all_.contains(tensor.unsafeGetTensorImpl());
  }

  // Brings the rows of the other replicas here, and sends this replica's; not
  // those of parameters that were frozen at each add(). An optimizer also moves
  // a parameter that was frozen later, if its shard has a gradient. Blocks
  // until all have called. `reducer`: of the same members. Errors: as for
  // Reducer::agree().
  void spread(Reducer& reducer);

 private:
  struct Sharded {
    at::Tensor parameter, shard;
    std::string name;
    bool is_present = false;  // added since clear()
    // Whether the parameter required a gradient at any add(). Equal on all
    // replicas, also on those that own no row of it.
    bool has_trained = false;
  };

  // Makes the shard a view of the parameter's present memory, with its present
  // requires_grad.
  void follow(Sharded& of) const;

  std::unordered_map<const at::TensorImpl*, Sharded> all_;
  std::vector<Sharded*> present_;  // in the order of add()
  const std::size_t members_, own_;
};

}  // namespace gpipe::internal
