// The tables of the papers as data: experiments, workloads and outcomes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/program.h"
#include "benchmarks/harness/table.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/simulation.h"

namespace gpipe::benchmarks {

// A way to get the numbers of a table.
enum class Mode {
  kMeasure,   // training on the devices of this machine
  kSimulate,  // layers timed on one device, and a simulated schedule
  kDryRun,    // training on meta devices, which count the bytes
};

// Returns the adjective for numbers of this mode: "measured", "simulated" or
// "dry-run".
std::string to_string(Mode mode);

// The quantity that a table is about. kTimeline: speed, memory and idle time of
// a step on a device per partition.
enum class TableKind { kSpeed, kMemory, kTimeline };

// Parses --mode=auto|measure|simulate|dry_run. auto means kMeasure. If there
// are not `enough_accelerators`, it means kDryRun for a memory table, since
// such a table needs its published sizes, and kSimulate for a timeline.
//
// Throws std::invalid_argument for another text, for simulate on a memory
// table, since the simulator computes times only, and for dry_run on a
// timeline.
Mode parse_mode(const std::string& text, TableKind table_kind,
                bool enough_accelerators);

// Parses --scale=auto|paper|small and returns true for small. auto means small
// if the mode is kMeasure and there are no `accelerators`.
//
// Throws std::invalid_argument for another text.
bool parse_scale(const std::string& text, Mode mode, bool accelerators);

// The settings of one row of a table, with its published figures.
struct Experiment {
  std::string name;        // the name in the paper
  int64_t partitions = 0;  // 0: the plain model, without a pipeline
  int64_t batch_size = 0;  // samples per mini-batch
  int64_t chunks = 1;      // micro-batches per mini-batch
  // Layers per partition. Empty: chosen by the mode of the run (measured or
  // profiled times, or bytes of parameters in a dry run).
  std::vector<int64_t> balance;
  Checkpoint checkpoint = Checkpoint::kExceptLast;
  // Published figures, in the order of Benchmark::published.
  std::vector<std::optional<double>> published;
  // The size of the model, such as (L, D), if the experiments of the table
  // differ in it.
  std::vector<int64_t> size;
  // The experiment whose speed-up is 1; "": Benchmark::base.
  std::string base;
};

// Returns the experiments that `names` ("a, b") lists, in the order of `all`.
// The name "all", alone or among others, selects every experiment.
//
// Throws std::invalid_argument with the known names if a name is unknown, or if
// `names` is empty.
std::vector<Experiment> select_experiments(const std::vector<Experiment>& all,
                                           const std::string& names);

// The optimizers, with LibTorch's defaults for all but the learning rate.
enum class Optimizer {
  kSgd,      // no state: 8 bytes per parameter, with its gradient
  kRmsprop,  // an average of squares: 12 bytes per parameter
};

// Makes an optimizer for `parameters`.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    Optimizer kind, std::vector<at::Tensor> parameters, double learning_rate);

// Returns the tensors that an optimizer of make_optimizer() keeps from step to
// step. There are none before its first step.
std::vector<at::Tensor> state_of(const torch::optim::Optimizer& optimizer);

// The quantity in a column of figures, such as Experiment::published.
enum class Figure {
  kSpeed,            // samples per second
  kSpeedUp,          // relative to the base experiment
  kParameters,       // number of parameters
  kLastingBytes,     // sum of DeviceMemory::lasting() over all devices
  kActivationBytes,  // sum of DeviceMemory::activations() over all devices
  kTotalBytes,       // sum of DeviceMemory::peak over all devices
};

// A column of published figures.
struct PublishedColumn {
  std::string name;  // "torchgpipe samples/s"
  Figure figure = Figure::kSpeed;
};

// The experiments of a table at one size: as published, or reduced.
struct Workload {
  std::string text;  // describes the data: "3x224x224 images"
  int64_t samples_per_epoch = 0;
  int64_t epochs = 0;
  int64_t skip_epochs = 0;  // number of warm-up epochs that do not count
  std::vector<Experiment> experiments;
  std::vector<std::string> notes;  // sentences that hold at this size only
  // Make a mini-batch of `rows` samples and its target. They name no device, so
  // that a dry run can make both on the meta device.
  std::function<at::Tensor(int64_t rows)> input;
  std::function<at::Tensor(int64_t rows)> target;
};

// A table: how to run its experiments, and how to present the results.
struct Benchmark {
  Program program;
  std::string title;
  TableKind table_kind = TableKind::kSpeed;  // decides the default mode
  // The column name for Experiment::size, "(L, D)"; "" if all sizes are equal.
  std::string size_column;
  std::vector<PublishedColumn> published;
  std::string base = "baseline";  // the experiment with a speed-up of 1
  // An experiment outside of the table whose published speed tells a simulation
  // how fast the devices were (SimulateOptions::device_speed), if none of the
  // table is to be fitted.
  std::optional<Experiment> yardstick;
  std::function<torch::nn::Sequential(const Experiment&)> model;
  std::function<at::Tensor(at::Tensor output, at::Tensor target)> loss;
  Optimizer optimizer = Optimizer::kSgd;
  double learning_rate = 0.1;
  Workload paper;                  // the published sizes
  Workload small;                  // sizes that take minutes on a CPU
  std::vector<std::string> notes;  // sentences about the published figures
};

// The units of published memory, in bytes.
constexpr double kGB = 1e9;
constexpr double kGiB = 1024.0 * 1024 * 1024;

// The number of classes in all tables with images and classes.
constexpr int64_t kImageNetClasses = 1000;

// How long a workload is trained: members of Workload.
struct Length {
  int64_t samples_per_epoch = 0, epochs = 0, skip_epochs = 0;
};

// Returns `workload` with experiments and epochs.
Workload with_rows(Workload workload, std::vector<Experiment> experiments,
                   const Length& length);

// The following functions return workloads without experiments and epochs.

// Returns a workload of random images [rows, 3, size, size] and classes [rows].
Workload images_of_classes(int64_t size, int64_t classes);

// The mask of an image: the probability that a pixel belongs to an object. It
// is 1 (torchgpipe's unet-speed) or random (torchgpipe's unet-memory).
enum class Mask { kOnes, kRandom };

// Returns a workload of random images [rows, 3, size, size] and masks [rows, 1,
// size, size].
Workload images_with_masks(int64_t size, Mask mask);

// Returns a workload of random tokens [rows, length] and random next tokens of
// the same shape.
Workload tokens(int64_t length, int64_t vocabulary);

// Returns the mean cross entropy of logits [..., classes] and classes [...].
at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target);

// Returns the mean binary cross entropy over all pixels, of logits and
// probabilities.
at::Tensor mask_loss(const at::Tensor& output, const at::Tensor& target);

// Returns the experiments at reduced size, for a few CPU cores: all with the
// same `batch_size`, and in `chunks` micro-batches if they had several. So rows
// differ only in the pipeline. Balances are removed: the layers are cut by
// measured time.
//
// `sizes`: the Experiment::size of each experiment, or empty.
std::vector<Experiment> reduced(
    std::vector<Experiment> experiments, int64_t batch_size, int64_t chunks,
    const std::vector<std::vector<int64_t>>& sizes = {});

// The following functions return rows with these members of Experiment.

// Returns a row of torchgpipe's tables or of GPipe's table 1. Its name is
// "baseline" for 0 partitions (the plain model), otherwise "pipeline-4". All
// micro-batches but the last are recomputed.
Experiment pipeline_row(int64_t partitions, int64_t batch_size, int64_t chunks,
                        std::vector<int64_t> balance,
                        std::vector<std::optional<double>> published,
                        std::vector<int64_t> size = {});

// Returns a row of GPipe's table 2. Its name consists of the partitions and
// micro-batches: "n2m32". As in torchgpipe's version of the table, a single
// micro-batch is recomputed; of several, all but the last are.
Experiment table_2_row(int64_t partitions, int64_t chunks, int64_t batch_size,
                       std::vector<int64_t> balance,
                       std::vector<std::optional<double>> published,
                       std::vector<int64_t> size);

// Returns a row of GPipe's table 3: "p100-n4", in 32 micro-batches. Its
// speed-up is relative to "p100-n2".
Experiment table_3_row(int64_t partitions, int64_t batch_size,
                       std::vector<int64_t> balance,
                       std::vector<std::optional<double>> published,
                       std::vector<int64_t> size);

// The memory of one device during training, in bytes.
struct DeviceMemory {
  // Memory that is kept from step to step. `gradients` is the size of the
  // trainable parameters.
  int64_t parameters = 0, gradients = 0, optimizer_state = 0;
  int64_t buffers = 0;  // such as the statistics of BatchNorm
  // The peak of all memory together, as requested by tensors.
  int64_t peak = 0;
  // The peak of the tensors that were copied from other devices. Only dry runs
  // know it.
  int64_t boundary = 0;
  // The peak of the memory that is not lasting: activations, temporary tensors
  // and boundary tensors together. Only dry runs know it.
  std::optional<int64_t> transient;
  // The peak of the memory that the caching allocator reserved; none if the
  // device has no caching allocator.
  std::optional<int64_t> reserved;

  // Returns the papers' "model memory", which does not include buffers.
  int64_t lasting() const { return parameters + gradients + optimizer_state; }
  // Returns the papers' "peak activation memory": the peak minus the model
  // memory and the buffers. It is less than `transient` if the peak comes
  // before the last gradients exist.
  int64_t activations() const { return peak - lasting() - buffers; }
};

// The result of an experiment, or the reason why there is none.
struct Outcome {
  Experiment experiment;       // with the balance that was used
  Mode mode = Mode::kMeasure;  // the way in which the result was obtained
  std::string devices;         // "cuda:0 x 2", if measured
  std::string threads;         // "2 x 1" on CPUs; "" on other devices
  int64_t samples = 0;         // the samples in each of the durations
  std::vector<Duration> durations;
  // The memory per device; empty if not measured. Partitions on one device
  // share an entry; all partitions on the CPU do.
  std::vector<DeviceMemory> memory;
  std::optional<Timeline> timeline;  // of a step, if simulated
  std::string error;                 // the reason why there is no result
  bool left_out = false;             // true if the error is not a failure
};

}  // namespace gpipe::benchmarks
