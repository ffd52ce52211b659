// A common interface to the pipelines that train: in one process or in several.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "train_program/cut.h"
#include "train_program/options.h"
#include "train_program/precision.h"
#include "train_program/task.h"

namespace gpipe::train_program {

// The loss of a micro-batch: the mean over its rows, on the output's device.
using LossOf = std::function<at::Tensor(const at::Tensor& output,
                                        const at::Tensor& target)>;

// A pipeline. With several processes, all make the same calls at the same time.
// Not thread-safe.
class Engine {
 public:
  virtual ~Engine() = default;

  // Return the rank of this process and the number of processes, and the index
  // of its replica of the pipeline and the number of replicas.
  virtual int rank() const { return 0; }
  virtual int ranks() const { return 1; }
  virtual int replica() const { return 0; }
  virtual int replicas() const { return 1; }
  // Returns whether this process uses the values of a Sample. If not, it may
  // pass an empty Sample.
  virtual bool takes_samples() const { return true; }

  // Returns the layers of this process, under their names in the whole model.
  virtual torch::nn::Module& module() = 0;
  virtual const std::vector<int64_t>& balance() const = 0;
  // Returns the device that inputs are copied to.
  virtual c10::Device device() const = 0;

  // Runs forward and backward for one mini-batch and adds its gradients to the
  // existing ones. See GPipeImpl::train_step.
  virtual StepResult train(const Sample& sample, const LossOf& loss,
                           const TrainOptions& options) = 0;

  // Returns the model's output on the CPU, computed without gradients, or
  // nullopt if this process does not hold the last stage.
  virtual std::optional<at::Tensor> forward(const at::Tensor& input) = 0;

  // Returns where this process's exception in the last train() came from.
  virtual std::optional<Failure> last_failure() const = 0;

  // Scales all gradients so that their norm, as one vector over all processes,
  // is at most `max_norm`. Returns the norm before that.
  virtual double clip(double max_norm) = 0;

  // Returns whether `here` is true in any process.
  virtual bool any(bool here) { return here; }

  // Returns the texts of all processes, by rank.
  virtual std::vector<std::string> all_gather(const std::string& mine) {
    return {mine};
  }
};

// The inputs of make_engine() beside the options.
struct EngineParts {
  torch::nn::Sequential model;
  // Returns input with this number of rows, on the CPU.
  std::function<at::Tensor(int64_t rows)> input;
  std::vector<int64_t> balance_before;  // CutSources::before
  Precision precision;                  // used when layers are timed
};

// The connected processes of a run, before they share an engine.
class EngineMaker {
 public:
  virtual ~EngineMaker() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  virtual std::vector<std::string> all_gather(const std::string& mine) = 0;

  // Builds the engine. Call it once. It may move from `parts`.
  virtual std::unique_ptr<Engine> make_engine(const Options& options,
                                              EngineParts parts) = 0;
};

}  // namespace gpipe::train_program
