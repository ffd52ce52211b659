// Our side of tools/compare_peers: runs a training step for every line on its
// input. worker.py does the same with the peers' engines and describes the
// protocol.

#include <ATen/Parallel.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <gflags/gflags.h>
#include <torch/optim/sgd.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "balancing/plan.h"
#include "benchmarks/harness/program.h"
#include "benchmarks/peers/peer_model.h"
#include "benchmarks/peers/step_meter.h"
#include "gpipe/base/devices.h"
#include "gpipe/base/processes.h"
#include "gpipe/base/text.h"
#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/transfers.h"
#include "gpipe/distributed/world.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/schedule/microbatches.h"
#include "models/exported/exported.h"
#include "models/lora.h"
#include "training/autocast.h"

DEFINE_string(model, "mlp",
              "Model: resnet101, unet, amoebanetd, mlp, transformer, or "
              "exported for the file of --exported.");
DEFINE_string(exported, "",
              "With --model=exported: a .pt2 file of torch.export.save.");
DEFINE_string(cut, "",
              "With --model=exported: the Python modules at which partitions "
              "begin, separated by commas. --balance then counts the model's "
              "own layers.");
DEFINE_int64(lora_rank, 0,
             "With --model=exported: train only adapters of this rank.");
DEFINE_string(lora_targets, "q_proj,v_proj",
              "With --lora_rank: the Python modules with adapters.");
DEFINE_int64(batch, 512, "Rows per mini-batch.");
DEFINE_int64(depth, 32, "Levels, cells, blocks or layers of the model.");
DEFINE_int64(width, 512, "Channels or features of the model.");
DEFINE_int64(side, 64, "Pixels per side of an image, or tokens per sequence.");
const std::string kEngineHelp =
    "gpipe: forward(), loss, backward(). Otherwise train_step() with this "
    "schedule: " +
    absl::StrJoin(gpipe::schedule_names(), ", ") + ".";
DEFINE_string(engine, "gpipe", kEngineHelp.c_str());
DEFINE_bool(processes, false,
            "Run every partition in a process of its own. --engine "
            "must be a schedule.");
DEFINE_int64(replicas, 1,
             "With --processes: replicas of the whole model, each in a process "
             "with its part of the mini-batch, instead of partitions.");
DEFINE_string(
    transfers, "auto",
    "With --processes on accelerators: auto, host, direct or tested.");
DEFINE_string(devices, "cpu",
              "A device per partition or process: cuda:0,cuda:0. A single one "
              "is that of all.");
DEFINE_string(amp, "",
              "Run under autocast: bfloat16 or float16. Empty for float32.");
DEFINE_string(balance, "32,32", "Layers per partition.");
DEFINE_int64(microbatches, 4, "Micro-batches per step.");
DEFINE_string(checkpoint, "never",
              "The micro-batches to recompute: always, except_last or never.");
DEFINE_string(plan, "",
              "Take cut, micro-batches and schedule from this file of "
              "--write_plan, instead of from --engine, --balance, "
              "--microbatches and --checkpoint.");
DEFINE_string(write_plan, "",
              "Only plan: write the plan for two partitions to this file.");
DEFINE_string(
    plan_microbatches, "4",
    "With --write_plan: the numbers of micro-batches to choose from.");
DEFINE_double(learning_rate, 0.01, "Learning rate of plain SGD.");
DEFINE_uint64(seed, 0, "Seed of the weights and the data.");

namespace gpipe::benchmarks {
namespace {

// Returns whether the model comes from the file of --exported.
bool is_exported() { return FLAGS_model == "exported"; }

// Returns the program of --exported with the adapters of --lora_rank, if any.
ExportedModel with_adapters(ExportedModel model) {
  if (FLAGS_lora_rank == 0) return model;
  return add_lora(std::move(model),
                  LoraOptions()
                      .rank(FLAGS_lora_rank)
                      .alpha(2 * static_cast<double>(FLAGS_lora_rank))
                      .targets(split_list(FLAGS_lora_targets)));
}

// Returns the model, or only the data and the loss of an exported one.
PeerModel data_of_flags() {
  if (is_exported()) {
    return exported_peer_data(FLAGS_exported, FLAGS_batch, FLAGS_side,
                              FLAGS_seed);
  }
  return make_peer_model(FLAGS_model,
                         {FLAGS_batch, FLAGS_depth, FLAGS_width, FLAGS_side},
                         FLAGS_seed);
}

// Returns the model with its data.
PeerModel model_of_flags() {
  PeerModel model = data_of_flags();
  if (is_exported()) {
    model.model = with_adapters(load_exported(FLAGS_exported)).layers;
  }
  return model;
}

std::vector<int64_t> balance_of_flags() {
  auto balance = parse_positive_list("balance", FLAGS_balance);
  if (!is_exported()) return balance;
  return balance_of_modules(FLAGS_exported, split_list(FLAGS_cut));
}

// Returns the number of layers that both sides report.
int64_t layers_of(int64_t size) { return is_exported() ? FLAGS_depth : size; }

// Returns the plan of --plan, or one of the other flags.
balancing::Plan plan_of_flags() {
  if (!FLAGS_plan.empty()) return balancing::read_plan(FLAGS_plan);
  balancing::Plan plan;
  plan.balance = balance_of_flags();
  plan.chunks = FLAGS_microbatches;
  plan.checkpoint = parse_checkpoint(FLAGS_checkpoint);
  if (FLAGS_engine != "gpipe") plan.schedule_name = FLAGS_engine;
  if (FLAGS_replicas > 1) {
    plan.balance = {layers_of(data_of_flags().model->size())};
  }
  plan.partitions.resize(plan.balance.size());
  return plan;
}

// Returns the devices of --devices, one for each of `parts` partitions or
// processes. A single device is that of all.
//
// Throws std::invalid_argument if --devices lists another number of devices.
std::vector<c10::Device> devices_of_flags(std::size_t parts) {
  const auto devices = parse_devices(FLAGS_devices);
  if (devices.size() == 1) return {parts, devices.front()};
  if (devices.size() != parts) {
    internal::refuse("--devices=", FLAGS_devices, " lists ", devices.size(),
                     " devices, but there are ", parts,
                     " partitions or processes; list one for each, or one for "
                     "all");
  }
  return devices;
}

// Returns a scope with the precision of --amp on `device`; null for float32.
// Throws std::invalid_argument if the precision is unknown.
std::unique_ptr<AutocastScope> autocast_of_flags(const c10::Device& device) {
  if (FLAGS_amp.empty()) return nullptr;
  const std::vector<std::string> names{"bfloat16", "float16"};
  const at::ScalarType types[] = {at::kBFloat16, at::kHalf};
  return std::make_unique<AutocastScope>(
      device.type(), types[parse_choice("amp", FLAGS_amp, names)]);
}

// Returns the number of processes of an engine with several.
std::size_t processes_of(const balancing::Plan& plan) {
  return plan.partitions.size() * FLAGS_replicas;
}

// Returns the pipeline of this process. It reads only its own layers from a
// file. `model`: released.
DistributedPipeline distributed_pipeline(PeerModel& model,
                                         const balancing::Plan& plan,
                                         const std::shared_ptr<World>& world) {
  const auto devices = devices_of_flags(processes_of(plan));
  const auto options = DistributedOptions(plan.balance)
                           .data_parallel(FLAGS_replicas)
                           .checkpoint(plan.checkpoint)
                           .stages_per_rank(plan.stages_per_rank)
                           .placement(plan.placement)
                           .device(devices[world->rank()])
                           .transfers(parse_transfers(FLAGS_transfers))
                           .threads_per_partition(1);
  if (!is_exported()) {
    return DistributedPipeline(std::exchange(model.model, nullptr), options,
                               world);
  }
  return DistributedPipeline(
      [](int64_t first, int64_t count) {
        return with_adapters(load_exported(FLAGS_exported, first, count))
            .layers;
      },
      options, world);
}

int64_t elements_of(const std::vector<at::Tensor>& parameters) {
  int64_t count = 0;
  for (const at::Tensor& each : parameters) count += each.numel();
  return count;
}

torch::optim::SGD optimizer_of(const std::vector<at::Tensor>& parameters) {
  return torch::optim::SGD(parameters,
                           torch::optim::SGDOptions(FLAGS_learning_rate));
}

// The times and the loss of a step.
struct Took {
  Duration duration;
  double loss = 0;
};

// Moves the data of a step to the devices that need it.
PeerModel on(PeerModel model, const c10::Device& first,
             const c10::Device& last) {
  model.input = model.input.to(first);
  model.target = model.target.to(last);
  return model;
}

// Returns a model with the rows of replica `rank`, if there are replicas.
PeerModel part_of(PeerModel model, int rank) {
  if (FLAGS_replicas == 1) return model;
  model.input = model.input.chunk(FLAGS_replicas)[rank];
  model.target = model.target.chunk(FLAGS_replicas)[rank];
  return model;
}

// An engine that trains a model of the flags.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual int64_t parameters() const = 0;
  virtual int64_t layers() const = 0;
  // Runs forward, backward and optimizer of a mini-batch.
  virtual Took step() = 0;
  // Returns the peak memory of all processes from the second step on; see
  // PeakMemory. The first step touches code of LibTorch that the peers have
  // touched before.
  virtual std::vector<double> peaks_mib() = 0;
};

// A pipeline in one process, with a thread per partition.
class Threads : public Engine {
 public:
  explicit Threads(const balancing::Plan& plan)
      : devices_(devices_of_flags(plan.balance.size())),
        model_(on(model_of_flags(), devices_.front(), devices_.back())),
        pipeline_(model_.model,
                  plan.options().devices(devices_).threads_per_partition(1)),
        optimizer_(optimizer_of(pipeline_->parameters())) {
    const bool by_forward = FLAGS_plan.empty() && FLAGS_engine == "gpipe";
    if (!by_forward) schedule_ = plan.schedule();
  }

  int64_t parameters() const override {
    return elements_of(pipeline_->parameters());
  }
  int64_t layers() const override { return layers_of(pipeline_->size()); }
  std::vector<double> peaks_mib() override {
    return memory_.value().peaks_mib();
  }

  Took step() override {
    const StepWatch watch(devices_);
    const at::Tensor loss = schedule_ ? by_schedule() : forward_and_backward();
    optimizer_.step();
    optimizer_.zero_grad();
    // Last, as the peers read theirs: the host then waits for the device.
    const auto value = loss.item<double>();
    const Duration took = watch.elapsed();
    if (!memory_) memory_.emplace(devices_);
    return {took, value};
  }

 private:
  at::Tensor forward_and_backward() {
    at::Tensor loss;
    {
      const auto autocast = autocast_of_flags(devices_.front());
      loss = model_.loss(pipeline_->forward(model_.input), model_.target);
    }
    loss.backward();
    return loss.detach();
  }
  at::Tensor by_schedule() {
    const auto autocast = autocast_of_flags(devices_.front());
    return pipeline_
        ->train_step(model_.input, model_.target, model_.loss, *schedule_)
        .loss;
  }

  const std::vector<c10::Device> devices_;
  const PeerModel model_;
  GPipe pipeline_;
  torch::optim::SGD optimizer_;
  std::optional<Schedule> schedule_;
  std::optional<PeakMemory> memory_;  // from the end of the first step on
};

// This process's part of a pipeline with a process per partition. All ranks
// must make the same calls.
class Rank {
 public:
  Rank(std::shared_ptr<World> world, const balancing::Plan& plan)
      : world_(std::move(world)),
        device_(devices_of_flags(processes_of(plan))[world_->rank()]),
        model_(on(part_of(data_of_flags(), world_->rank()), device_, device_)),
        pipeline_(distributed_pipeline(model_, plan, world_)),
        schedule_(plan.schedule()),
        optimizer_(optimizer_of(pipeline_->parameters())) {}

  enum class Word : int64_t { kStop, kStep, kPeak };
  // Sends `word` on rank 0; the other ranks ignore it. Returns the word of rank
  // 0 on all ranks.
  Word hear(Word word = Word::kStop) {
    const auto mine = std::to_string(static_cast<int64_t>(word));
    return static_cast<Word>(std::stoll(all_gather(*world_, mine)[0]));
  }

  Took step() {
    const StepWatch watch({device_});
    const double loss = [&] {
      const auto autocast = autocast_of_flags(device_);
      return pipeline_
          ->train_step(model_.input, model_.target, model_.loss, schedule_)
          .loss.item<double>();
    }();
    optimizer_.step();
    optimizer_.zero_grad();
    // The host's clock runs until all ranks have finished. The events of an
    // accelerator would include the messages.
    if (device_.is_cpu()) sum(0);
    Duration took = watch.elapsed();
    if (!memory_) memory_.emplace(std::vector{device_});
    const auto walls = of_all_ranks(took.wall_seconds);
    took.wall_seconds = *std::max_element(walls.begin(), walls.end());
    took.cpu_seconds = sum(took.cpu_seconds);
    return {took, loss};
  }

  // Returns the number of elements of the model's parameters.
  double parameters() {
    const bool counts = pipeline_->layout().replica == 0;
    return sum(counts ? elements_of(pipeline_->parameters()) : 0);
  }
  // Returns the sums over all ranks.
  std::vector<double> peaks_mib() {
    std::vector<double> sums;
    for (const double each : memory_.value().peaks_mib()) {
      sums.push_back(sum(each));
    }
    return sums;
  }
  int64_t layers() const { return layers_of(pipeline_->size()); }

 private:
  std::vector<double> of_all_ranks(double value) {
    std::vector<double> values;
    for (const auto& each :
         all_gather(*world_, absl::StrFormat("%.17g", value))) {
      values.push_back(std::stod(each));
    }
    return values;
  }
  double sum(double value) {
    const auto values = of_all_ranks(value);
    return std::accumulate(values.begin(), values.end(), 0.0);
  }

  const std::shared_ptr<World> world_;
  const c10::Device device_;
  PeerModel model_;
  DistributedPipeline pipeline_;
  const Schedule schedule_;
  torch::optim::SGD optimizer_;
  std::optional<PeakMemory> memory_;  // from the end of the first step on
};

WorldOptions world_options() {
  WorldOptions options = WorldOptions::from_environment();
  // Long timeouts, since the ranks wait while other engines run their steps.
  options.timeout = std::chrono::hours(1);
  options.heartbeat_timeout = std::chrono::minutes(10);
  return options;
}

// Runs a process that is not rank 0: follows rank 0 until it stops.
void follow() {
  Rank rank(World::connect(world_options()), plan_of_flags());
  rank.parameters();
  Rank::Word word;
  while ((word = rank.hear()) != Rank::Word::kStop) {
    if (word == Rank::Word::kStep) rank.step();
    if (word == Rank::Word::kPeak) rank.peaks_mib();
  }
}

// All ranks, controlled by the process that is rank 0. It starts the others as
// further processes of this program.
class Ranks : public Engine {
 public:
  explicit Ranks(const balancing::Plan& plan)
      : others_(start(static_cast<int>(processes_of(plan)))) {
    rank_.emplace(World::connect(world_options()), plan);
    parameters_ = static_cast<int64_t>(rank_->parameters());
  }
  ~Ranks() override {
    try {
      rank_->hear(Rank::Word::kStop);
    } catch (const std::exception&) {
      // The World has failed, and step() has said why.
    }
    rank_.reset();
  }

  int64_t parameters() const override { return parameters_; }
  int64_t layers() const override { return rank_->layers(); }
  Took step() override {
    rank_->hear(Rank::Word::kStep);
    return rank_->step();
  }
  std::vector<double> peaks_mib() override {
    rank_->hear(Rank::Word::kPeak);
    return rank_->peaks_mib();
  }

 private:
  static std::unique_ptr<Processes> start(int size) {
    const auto set = [](const char* name, const std::string& value) {
      ::setenv(name, value.c_str(), /*overwrite=*/1);
    };
    set("WORLD_SIZE", std::to_string(size));
    set("MASTER_ADDR", "127.0.0.1");
    set("MASTER_PORT", std::to_string(free_port()));
    set("RANK", "0");
    ::unsetenv("LOCAL_RANK");
    ::unsetenv("LOCAL_WORLD_SIZE");
    const std::vector<std::string> words = gflags::GetArgvs();
    std::vector<Command> commands;
    for (int rank = 1; rank < size; ++rank) {
      commands.push_back({"/proc/self/exe",
                          {words.begin() + 1, words.end()},
                          {{"RANK", std::to_string(rank)}}});
    }
    return std::make_unique<Processes>(commands,
                                       [](int, Stream, std::string_view line) {
                                         std::cerr << line << std::endl;
                                       });
  }

  const std::unique_ptr<Processes> others_;
  std::optional<Rank> rank_;
  int64_t parameters_ = 0;
};

std::unique_ptr<Engine> make_engine() {
  autocast_of_flags(c10::Device(at::kCPU));  // throws if --amp is unknown
  const balancing::Plan plan = plan_of_flags();
  if (!FLAGS_processes) return std::make_unique<Threads>(plan);
  return std::make_unique<Ranks>(plan);
}

void serve() {
  at::set_num_threads(1);
  const char* const rank = std::getenv("RANK");
  if (FLAGS_processes && rank && std::string(rank) != "0") return follow();
  if (!FLAGS_write_plan.empty()) {
    return write_peer_plan(
        model_of_flags(),
        parse_positive_list("plan_microbatches", FLAGS_plan_microbatches),
        FLAGS_write_plan);
  }
  const std::unique_ptr<Engine> engine = make_engine();
  std::cout << "READY " << engine->parameters() << " " << engine->layers()
            << " " << TORCH_VERSION << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "step") {
      const Took took = engine->step();
      std::cout << took.duration.wall_seconds << " "
                << took.duration.cpu_seconds << " " << took.loss << std::endl;
    } else if (line == "peak") {
      for (const double mib : engine->peaks_mib()) std::cout << mib << " ";
      std::cout << std::endl;
    } else {
      throw std::runtime_error(
          "expected 'step' or 'peak' on the input, but got: " + line);
    }
  }
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  const gpipe::benchmarks::Program program{
      "worker",
      "runs a training step for each line 'step' on its input and\n"
      "prints how long it took; for tools/compare_peers.",
      {"--model=mlp --engine=1f1b", "--model=mlp --engine=1f1b --processes"},
      /*experiments=*/{},
      "//benchmarks/peers"};
  return gpipe::benchmarks::run_program(argc, argv, program, [] {
    gpipe::benchmarks::serve();
    return gpipe::benchmarks::kOk;
  });
}
