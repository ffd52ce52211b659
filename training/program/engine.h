// A common interface to the pipelines that train: in one process or in several.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/timeline.h"
#include "gpipe/distributed/world.h"
#include "gpipe/gpipe.h"
#include "gpipe/pipeline_module.h"
#include "models/weights/run_shard.h"
#include "training/program/cut.h"
#include "training/program/options.h"
#include "training/program/step.h"

namespace gpipe::train_program {

// The loss of a micro-batch, on the output's device; see Task::loss().
using LossOf = std::function<WeightedLoss(const at::Tensor& output,
                                          const at::Tensor& target)>;

// The processes of a run: this one alone or, with --distributed, those that a
// launcher has started (see docs/distributed.md).
class RunProcesses {
 public:
  // Blocks until all processes are there. Throws c10::ValueError or
  // std::invalid_argument if the options do not fit, and what World::connect()
  // throws.
  explicit RunProcesses(const Options& options);

  int rank() const { return world_ ? world_->rank() : 0; }
  int ranks() const { return world_ ? world_->size() : 1; }
  // Returns the texts of all processes, by rank. `action`: for errors.
  std::vector<std::string> all_gather(
      const std::string& mine,
      const std::string& action = "before training") const;
  // Returns the same on rank 0 for texts of any length, and nothing on others.
  std::vector<std::string> gather(const std::string& mine,
                                  const std::string& action) const;
  // Returns the place of this process for files that all write together.
  RunShard shard(const std::string& action) const;
  // Null for one process.
  const std::shared_ptr<World>& world() const { return world_; }

 private:
  std::shared_ptr<World> world_;
};

// The prediction for the ranks of this process on one device.
struct PlannedMemory {
  c10::Device device;
  std::vector<int64_t> ranks;  // of the pipeline, ascending
  double bytes = 0;            // the sum of their predicted peaks
};

// The pipeline of a run and its schedule. With several processes, all make the
// same calls at the same time. Not thread-safe.
class Engine {
 public:
  // `cut`: with the sizes of one replica. `make`: see EngineParts.
  Engine(RunProcesses processes, torch::nn::Sequential model,
         const LayerBuilder& make, const Cut& cut, const Options& options);

  // Return the rank of this process and the number of processes, and the index
  // of its replica of the pipeline and the number of replicas.
  int rank() const { return processes_.rank(); }
  int ranks() const { return processes_.ranks(); }
  int replica() const;
  int replicas() const;
  // Returns the number of micro-batches of a step, for one replica.
  int64_t microbatches() const;
  // Return the text of the plan, on the first process, and the predicted
  // seconds of forward and backward. "" and 0 without --plan.
  const std::string& plan() const { return plan_; }
  double predicted_seconds() const { return predicted_seconds_; }
  // Returns the predicted memory of the ranks of this process, by device; empty
  // without --plan.
  std::vector<PlannedMemory> planned_memory() const;
  // Returns whether this process uses the values of a Sample. If not, it may
  // pass an empty Sample.
  bool takes_samples() const;

  // Returns the layers of this process, under their names in the whole model.
  PipelineModule& module();

  // Runs forward and backward of one step and adds its gradients to the
  // existing ones. See PipelineModule::train_step().
  StepResult train(const StepData& data, const LossOf& loss,
                   const TrainOptions& options);

  // Evaluates with the pipeline of another model, which has the same stages,
  // and the tensors of the one that is trained, see share_tensors(). `make`:
  // see EngineParts.
  void evaluate_with(torch::nn::Sequential model, const LayerBuilder& make,
                     Cut cut, Options options);

  // Returns the model's output on the CPU, computed without gradients, or
  // nullopt if this process does not hold the last stage. The model is that of
  // evaluate_with(), if there is one.
  std::optional<at::Tensor> forward(const Sample& sample);

  // Does the same for a micro-batch from each of `parts`, which may have any
  // shapes, and returns the outputs in this order.
  std::optional<std::vector<at::Tensor>> forward(
      const std::vector<Sample>& parts);

  // Returns the timelines of all processes on rank 0, of `own` and of those
  // that the other ranks pass. Only if Options::trace is given.
  WholeTimeline whole_timeline(const Timeline& own);

  // Returns the texts of all processes, by rank.
  std::vector<std::string> all_gather(const std::string& mine) const {
    return processes_.all_gather(mine, "training");
  }
  std::vector<std::string> gather(const std::string& mine) const {
    return processes_.gather(mine, "training");
  }
  RunShard shard() const { return processes_.shard("training"); }

 private:
  using Pipeline = std::variant<GPipe, DistributedPipeline>;

  // Returns the sample with its inputs on the device of the first stage here.
  Sample on_device(Sample sample);
  // Returns the pipeline that evaluates.
  Pipeline& evaluating();

  const RunProcesses processes_;
  Pipeline pipeline_;
  std::optional<Pipeline> evaluated_;
  const Schedule schedule_;
  const std::string plan_;
  const double predicted_seconds_;
  const std::vector<double> predicted_bytes_;  // by rank; empty without --plan
  std::optional<SharedClock> clock_;  // of several processes that trace a step
};

// The inputs of make_engine() beside the options.
struct EngineParts {
  torch::nn::Sequential model;
  // Makes some layers of the model, if `model` has no values and each process
  // makes its own layers only. Not set if the values are in `model`.
  LayerBuilder make;
  // The model to evaluate instead, and its layers, see Engine::evaluate_with().
  // Null: that which is trained.
  torch::nn::Sequential eval_model{nullptr};
  LayerBuilder make_eval;
  // Returns input with this number of rows, on the CPU.
  std::function<Sample(int64_t rows)> input;
  std::vector<int64_t> balance_before;  // CutSources::before
  Precision precision;                  // used when layers are timed
};

// Cuts the model and makes its engine. With several processes, rank 0 chooses
// the cut.
std::unique_ptr<Engine> make_engine(const RunProcesses& processes,
                                    const Options& options, EngineParts parts);

}  // namespace gpipe::train_program
