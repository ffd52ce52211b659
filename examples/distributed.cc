// Trains a small Transformer in several processes, each of which holds some of
// its layers. Every process runs this program:
//
//   ./bazelw build //examples:distributed
//   ./bazelw run //tools:launch -- --nproc=2 -- bazel-bin/examples/distributed
#include <absl/strings/str_join.h>
#include <gflags/gflags.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "balancing/balancing.h"
#include "gpipe/base/program.h"
#include "gpipe/base/run_main.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world.h"
#include "gpipe/schedule.h"
#include "models/transformer.h"
#include "training/data/random.h"

DEFINE_int64(steps, 20, "Number of training steps.");
DEFINE_int64(batch_size, 32, "Sequences per step, over all replicas.");
DEFINE_int64(chunks, 8,
             "Number of micro-batches per replica's part of a batch.");
const std::string kScheduleHelp =
    "The schedule: " + absl::StrJoin(gpipe::schedule_names(), ", ") +
    ". forward-only does not train.";
DEFINE_string(schedule, "1f1b", kScheduleHelp.c_str());
DEFINE_int64(stages_per_rank, 2,
             "Number of stages per process, for schedules with a choice.");
DEFINE_int64(data_parallel, 1,
             "Number of replicas of the pipeline. Each trains on its part of "
             "the batch. The number of processes must be a multiple of it.");
DEFINE_int64(layers, 4,
             "Number of blocks, each with attention and feed-forward layers.");
DEFINE_int64(width, 64,
             "Width of the blocks. The feed-forward layers have four times "
             "this width.");
DEFINE_int64(length, 16, "Tokens per sequence.");
DEFINE_double(lr, 0.003, "Learning rate of Adam.");
DEFINE_double(clip, 1, "Largest norm of the gradients.");
DEFINE_uint64(seed, 0, "The seed for weights, data and dropout.");
DEFINE_int64(threads, 1,
             "Number of threads per process for operators. If it is equal, "
             "losses are bitwise equal for any number of processes.");
DEFINE_double(timeout, 60,
              "Seconds to wait for the other processes, and for any message.");
DEFINE_double(heartbeat_timeout, 10,
              "Seconds after which a process that sends no heartbeat is "
              "reported as frozen.");
DEFINE_string(
    transfers, "auto",
    "The transport of tensors between accelerators. 'host' copies "
    "through host memory, 'direct' uses NCCL, 'tested' uses NCCL if a "
    "self-test of it passes, 'auto' means 'tested' in a program with NCCL, "
    "unless GPIPE_BACKEND is gloo, else 'host'.");
DEFINE_string(own_address, "",
              "The address of this machine to which other ranks connect. '': "
              "the address from which this machine reaches MASTER_ADDR.");

constexpr char kUsage[] = R"(trains a small Transformer in several processes.

Start it once per process. The rank and the address of rank 0 come from the
environment variables of the launcher. Without them the program runs alone:

  distributed --steps=20
  launch --nproc=4 -- distributed --schedule=zb-h1
  launch --nproc=4 -- distributed --data_parallel=2
  torchrun --nproc-per-node=2 --no-python distributed
  srun --ntasks=2 distributed
  mpirun -n 2 distributed
  RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 distributed

Rank 0 prints the losses. Every process prints its own errors on stderr. The
exit code is 1 if any process failed. See docs/distributed.md.)";

constexpr int64_t kVocabulary = 32;

struct Batch {
  torch::Tensor inputs, targets;  // int64, [rows, length]
};

// Returns sequences that count modulo kVocabulary, each with its own step. The
// targets are the next tokens. All ranks get the same sequences.
Batch draw_batch(int64_t step) {
  auto generator = at::detail::createCPUGenerator(
      gpipe::data::mix_seed(FLAGS_seed, static_cast<uint64_t>(step)));
  const auto draw = [&](int64_t low, int64_t high) {
    return torch::randint(low, high, {FLAGS_batch_size, 1}, generator,
                          torch::kLong);
  };
  const auto first = draw(0, kVocabulary);
  const auto difference = draw(1, 4);
  const auto tokens =
      (first + difference * torch::arange(FLAGS_length + 1)) % kVocabulary;
  return {tokens.slice(1, 0, -1), tokens.slice(1, 1)};
}

// Returns the sum of the cross entropies of all tokens and their number. The
// step divides by the number over all micro-batches and replicas.
gpipe::WeightedLoss loss_of(const torch::Tensor& logits,
                            const torch::Tensor& targets) {
  namespace F = torch::nn::functional;
  gpipe::WeightedLoss loss;
  loss.sum = F::cross_entropy(
      logits.flatten(0, 1), targets.to(logits.device()).flatten(),
      F::CrossEntropyFuncOptions().reduction(torch::kSum));
  loss.weight = torch::tensor(targets.numel());
  return loss;
}

// Returns the schedule for the processes of one replica.
gpipe::Schedule make_schedule(const gpipe::World& world) {
  TORCH_CHECK_VALUE(
      FLAGS_data_parallel > 0 && world.size() % FLAGS_data_parallel == 0,
      world.size(),
      " processes cannot be divided into --data_parallel=", FLAGS_data_parallel,
      " replicas of the pipeline");
  const int ranks = static_cast<int>(world.size() / FLAGS_data_parallel);
  const auto fixed = gpipe::fixed_stages_per_rank(FLAGS_schedule);
  return gpipe::named_schedule(
      FLAGS_schedule, ranks, static_cast<int>(FLAGS_chunks),
      fixed.value_or(static_cast<int>(FLAGS_stages_per_rank)));
}

gpipe::DistributedPipeline make_pipeline(
    const std::shared_ptr<gpipe::World>& world,
    const gpipe::Schedule& schedule) {
  // All processes build the same weights and each keeps its part. For models
  // that are too large for one process, see gpipe::LayerBuilder.
  torch::manual_seed(FLAGS_seed);
  const auto model =
      gpipe::models::transformer(gpipe::models::TransformerOptions()
                                     .num_layers(FLAGS_layers)
                                     .width(FLAGS_width)
                                     .feed_forward(4 * FLAGS_width)
                                     .heads(4)
                                     .vocabulary(kVocabulary)
                                     .sequence(FLAGS_length)
                                     .tied_embeddings(true));
  // Cuts by size, not by time, so that all processes find the same cut.
  const std::vector<int> rank_of_stage = gpipe::rank_of_stage(schedule);
  const auto balance = gpipe::balancing::balance_by_size(
      static_cast<int64_t>(rank_of_stage.size()), model, draw_batch(0).inputs,
      gpipe::balancing::SizeOptions().chunks(FLAGS_chunks).param_scale(4));
  const auto ranks = static_cast<int64_t>(schedule.ranks.size());
  const auto stages = static_cast<int64_t>(balance.size());
  const bool turns = stages > ranks && rank_of_stage.back() == 0;
  if (world->rank() == 0) {
    std::cout << world->size() << " processes, layers per stage: " << balance
              << std::endl;
  }
  return gpipe::DistributedPipeline(
      model,
      gpipe::DistributedOptions(balance)
          .data_parallel(FLAGS_data_parallel)
          .stages_per_rank(stages / ranks)
          .placement(turns ? gpipe::Placement::kV : gpipe::Placement::kLoop)
          .transfers(gpipe::parse_transfers(FLAGS_transfers))
          .threads_per_partition(FLAGS_threads),
      world);
}

void train(const std::shared_ptr<gpipe::World>& world) {
  const gpipe::Schedule schedule = make_schedule(*world);
  gpipe::DistributedPipeline pipeline = make_pipeline(world, schedule);
  // Optimizes the parameters of this process. Other processes do the same.
  torch::optim::Adam optimizer(pipeline->parameters(), FLAGS_lr);
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t step = 1; step <= FLAGS_steps; ++step) {
    const Batch batch = draw_batch(step);
    // Returns this replica's rows.
    const auto rows = [&](const torch::Tensor& all) {
      return all.tensor_split(FLAGS_data_parallel)[pipeline->layout().replica];
    };
    optimizer.zero_grad();
    const auto result =
        pipeline->train_step(rows(batch.inputs).to(pipeline->device()),
                             rows(batch.targets), loss_of, schedule);
    const double norm = pipeline->clip_grad_norm_(FLAGS_clip);
    optimizer.step();
    if (world->rank() == 0) {
      std::cout << "step " << step << ", loss " << result.loss.item<float>()
                << ", gradient norm " << norm << std::endl;
    }
  }
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - begin;
  if (world->rank() == 0) {
    std::cout << FLAGS_steps << " steps in " << seconds.count() << " s"
              << std::endl;
  }
}

void run() {
  TORCH_CHECK_VALUE(FLAGS_batch_size > 0 && FLAGS_chunks > 0 &&
                        FLAGS_steps > 0 && FLAGS_stages_per_rank > 0,
                    "--batch_size, --chunks, --steps and --stages_per_rank "
                    "need to be above 0");
  constexpr int kMost = std::numeric_limits<int>::max();
  TORCH_CHECK_VALUE(FLAGS_chunks <= kMost && FLAGS_stages_per_rank <= kMost,
                    "--chunks=", FLAGS_chunks,
                    " and --stages_per_rank=", FLAGS_stages_per_rank,
                    ": must be at most ", kMost);
  const auto options = [] {
    auto from_environment = gpipe::WorldOptions::from_environment();
    from_environment.own_address = FLAGS_own_address;
    from_environment.timeout = gpipe::milliseconds_of(FLAGS_timeout);
    from_environment.heartbeat_timeout =
        gpipe::milliseconds_of(FLAGS_heartbeat_timeout);
    return from_environment;
  }();
  train(gpipe::World::connect(options));
}

int main(int argc, char** argv) {
  return gpipe::run_main(argc, argv, "distributed", kUsage,
                         "examples/distributed", run, /*failed=*/1);
}
