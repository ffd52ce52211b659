#include "train_program/flags.h"

#include <gflags/gflags.h>

#include <sstream>
#include <utility>

namespace {

const gpipe::trainer::Options kDefaults;

}  // namespace

// ---- The model and its data

DEFINE_string(model, kDefaults.task.model,
              "The model: resnet50, resnet101 or amoebanetd for labelled "
              "images, unet for images with masks, transformer for a text.");
DEFINE_string(data_dir, kDefaults.task.data,
              "The data. For unet: a folder with images/NAME.png and "
              "masks/NAME.png (or .jpg), where masks are white inside the "
              "object. For labelled images: a folder with train/CLASS/ and "
              "test/CLASS/, or with CLASS/ only, which contain .jpg and .png "
              "files, or a folder with the files of CIFAR-10 or MNIST. For "
              "transformer: a text file. '': the program generates data.");
DEFINE_double(held_out, kDefaults.task.held_out,
              "The fraction of the data that is used for testing, if the data "
              "has no test part of its own.");
DEFINE_int64(size, kDefaults.task.size,
             "Height and width to which images are resized. 0: 64 for images "
             "with masks; for labelled images their own size if it is at most "
             "64, else 224.");
DEFINE_string(crop, kDefaults.task.crop,
              "How training crops labelled images: none, padded (adds a border "
              "and crops at a random position, as usual for CIFAR-10), resized "
              "(crops a random area and resizes it, as for ImageNet), or auto "
              "(padded for sizes up to 64, else resized).");
DEFINE_bool(flip, kDefaults.task.flip,
            "Whether training mirrors images at random, each with probability "
            "0.5. Not useful for digits.");
DEFINE_bool(skip_broken, kDefaults.task.skip_broken,
            "Skip image files that cannot be read, and print each once. "
            "Training uses the next image instead, testing uses none.");
DEFINE_uint64(seed, kDefaults.task.seed,
              "The seed for initial weights, order of the data, crops and "
              "dropout.");

DEFINE_int64(amoebanet_layers, kDefaults.task.amoebanet_layers,
             "Number of normal cells of amoebanetd, a multiple of 3.");
DEFINE_int64(amoebanet_filters, kDefaults.task.amoebanet_filters,
             "Number of filters of amoebanetd, a multiple of 8.");
DEFINE_int64(unet_depth, kDefaults.task.unet_depth,
             "Number of levels of unet.");
DEFINE_int64(unet_convs, kDefaults.task.unet_convs,
             "Number of convolutions per level of unet.");
DEFINE_int64(unet_channels, kDefaults.task.unet_channels,
             "Number of channels in the first level of unet.");
DEFINE_int64(transformer_layers, kDefaults.task.transformer_layers,
             "Number of blocks of transformer, each with attention and "
             "feed-forward layers.");
DEFINE_int64(transformer_width, kDefaults.task.transformer_width,
             "Width of the blocks of transformer. The feed-forward layers have "
             "four times this width.");
DEFINE_int64(transformer_heads, kDefaults.task.transformer_heads,
             "Number of attention heads of transformer.");
DEFINE_double(transformer_dropout, kDefaults.task.transformer_dropout,
              "Dropout probability of transformer, at least 0 and below 1.");
DEFINE_int64(length, kDefaults.task.length,
             "Sequence length of transformer, in characters.");

// ---- The pipeline

DEFINE_int64(partitions, kDefaults.engine.partitions,
             "Number of workers in this process. Each runs a part of the model "
             "on a device (on a CPU with a share of the cores).");
DEFINE_string(balance, kDefaults.engine.balance,
              "How layers are assigned to stages: time (by measured time), "
              "size (by memory), or a list of layers per stage, for example "
              "100,83. With time and size, a run that resumes with the same "
              "number of stages keeps its layers per stage.");
DEFINE_int64(chunks, kDefaults.engine.chunks,
             "Number of micro-batches per mini-batch (with --data_parallel: "
             "per replica's part of a mini-batch).");
DEFINE_string(schedule, kDefaults.engine.schedule,
              "The schedule: fill-drain (GPipe), 1f1b, eager-1f1b, "
              "interleaved-1f1b, looped-bfs, zb-h1, zb-h2, zb-interleaved, "
              "zbv, v-half, v-min, dualpipe-v.");
DEFINE_int64(stages_per_rank, kDefaults.engine.stages_per_rank,
             "Number of stages that each worker runs, for schedules with a "
             "choice (interleaved-1f1b, looped-bfs, zb-interleaved).");
DEFINE_string(checkpoint, kDefaults.engine.checkpoint,
              "Which micro-batches recompute their activations in the "
              "backward pass, to save memory: never (none), except_last (all "
              "but the last), always (all).");
DEFINE_bool(deferred_batch_norm, kDefaults.engine.deferred_batch_norm,
            "Compute running statistics of BatchNorm from mini-batches "
            "instead of micro-batches.");
DEFINE_string(devices, kDefaults.engine.devices,
              "One device per worker, for example cuda:0,cuda:1 or cpu,cpu. A "
              "device may appear several times. '': all accelerators, or the "
              "CPU. With --distributed: the processes of a machine use the "
              "devices in turn.");
DEFINE_int64(threads, kDefaults.engine.threads,
             "Number of threads per worker for operators on a CPU. 0: an equal "
             "share of the cores. Results are bitwise equal only for equal "
             "numbers of threads.");
DEFINE_bool(distributed, kDefaults.engine.distributed,
            "Run each worker in a process of its own. The rank of this process "
            "comes from the environment variables of torchrun, Slurm, MPI or "
            "tools/launch. --partitions is ignored then.");
DEFINE_int64(data_parallel, kDefaults.engine.data_parallel,
             "With --distributed: number of replicas of the pipeline, which "
             "share each mini-batch. The number of processes must be a "
             "multiple of it.");
DEFINE_string(transfers, kDefaults.engine.transfers,
              "With --distributed: the transport of tensors between "
              "accelerators. 'host' copies through host memory, 'direct' uses "
              "NCCL, 'auto' means 'host'.");
DEFINE_string(own_address, kDefaults.engine.own_address,
              "With --distributed: the address of this machine to which other "
              "ranks connect. '': the address from which this machine reaches "
              "MASTER_ADDR.");
DEFINE_double(timeout, kDefaults.engine.timeout,
              "With --distributed: seconds to wait for another process or a "
              "message. Must be longer than a step and than an evaluation.");
DEFINE_double(heartbeat_timeout, kDefaults.engine.heartbeat_timeout,
              "With --distributed: seconds after which a process that sends no "
              "heartbeat is reported as frozen.");

// ---- Steps

DEFINE_int64(epochs, kDefaults.loop.epochs,
             "Number of passes over the training data.");
DEFINE_int64(
    steps, kDefaults.loop.steps,
    "Number of optimizer steps, instead of --epochs. 0: use --epochs.");
DEFINE_int64(batch, kDefaults.task.batch,
             "Mini-batch size: number of images or of text windows, over all "
             "replicas.");
DEFINE_int64(accumulate, kDefaults.loop.accumulate,
             "Number of mini-batches per optimizer step. Their gradients are "
             "averaged.");
DEFINE_string(optimizer, kDefaults.optimizer.name,
              "The optimizer: sgd, adam, adamw, rmsprop or adagrad.");
DEFINE_double(lr, kDefaults.optimizer.lr, "The base learning rate.");
DEFINE_string(lr_schedule, kDefaults.loop.lr_schedule,
              "The factor of --lr at each step: constant, cosine:N, linear:N, "
              "polynomial:N:P or step:N:G, with N in steps. Optional: warmup:N "
              "before it and floor:F after it, separated by commas, for "
              "example warmup:500,cosine:10000,floor:0.1.");
DEFINE_double(momentum, kDefaults.optimizer.momentum,
              "Momentum of sgd and rmsprop.");
DEFINE_double(weight_decay, kDefaults.optimizer.weight_decay,
              "Weight decay for parameters with two or more dimensions (see "
              "--decay_norms). It is decoupled with adamw.");
DEFINE_bool(decay_norms, kDefaults.optimizer.decay_norms,
            "Apply weight decay also to biases and to the weights of "
            "normalization layers.");
DEFINE_double(clip, kDefaults.loop.clip,
              "Largest norm of the gradients of all parameters as one vector. "
              "Longer gradients are scaled down. 0: no limit.");
DEFINE_string(precision, kDefaults.loop.precision,
              "float32; amp-float16 or amp-bfloat16 (autocast: parameters in "
              "float32, operators in half precision where it is safe, with "
              "loss scaling for float16); bfloat16 (everything).");
DEFINE_bool(deterministic, kDefaults.loop.deterministic,
            "Give bitwise equal results in each run on the same machines. Uses "
            "LibTorch's deterministic operators (an operator without such an "
            "implementation is an error), and sums gradients in the order of "
            "the micro-batches.");
DEFINE_int64(eval_every, kDefaults.loop.eval_every,
             "Steps between evaluations on the held-out data. 0: once per "
             "epoch, -1: never.");

// ---- The run

DEFINE_string(run_dir, kDefaults.loop.run_dir,
              "The folder of this run, for run checkpoints, metrics.csv and "
              "TensorBoard's event files. '': nothing is saved.");
DEFINE_string(
    resume, kDefaults.loop.resume,
    "auto: resume from the newest undamaged step in --run_dir, or start a new "
    "run if it has no steps. none: start a new run in a folder without steps. "
    "A number: resume from this step.");
DEFINE_int64(save_every, kDefaults.loop.save_every,
             "Steps between run checkpoints. 0: save only at the end, or when "
             "the run is stopped.");
DEFINE_int64(keep, kDefaults.loop.keep, "Number of run checkpoints to keep.");
DEFINE_string(weights, kDefaults.loop.weights,
              "Initial weights: a .pt, .pth or .safetensors file. For resnet50 "
              "and resnet101 it may use torchvision's names.");
DEFINE_string(weights_skip, kDefaults.loop.weights_skip,
              "Tensors that are not loaded from --weights: a comma-separated "
              "list of prefixes of their names, for example 'fc.' if the "
              "number of classes differs.");
DEFINE_string(trace, kDefaults.loop.trace,
              "The file for a timeline of all actions in one step, for "
              "ui.perfetto.dev.");
DEFINE_string(kineto, kDefaults.loop.kineto,
              "The file for a timeline of all operators in one step, recorded "
              "by LibTorch's profiler.");
DEFINE_int64(trace_step, kDefaults.loop.trace_step,
             "The step that --trace and --kineto record. The first step of "
             "this program is 1.");

namespace gpipe::trainer {
namespace {

struct Group {
  const char* title;
  std::vector<std::string> flags;
};

const std::vector<Group>& groups() {
  static const std::vector<Group> all{
      {"The model and its data",
       {"model", "data_dir", "held_out", "size", "crop", "flip", "skip_broken",
        "seed", "amoebanet_layers", "amoebanet_filters", "unet_depth",
        "unet_convs", "unet_channels", "transformer_layers",
        "transformer_width", "transformer_heads", "transformer_dropout",
        "length"}},
      {"Steps",
       {"epochs", "steps", "batch", "accumulate", "optimizer", "lr",
        "lr_schedule", "momentum", "weight_decay", "decay_norms", "clip",
        "precision", "deterministic", "eval_every"}},
      {"The run",
       {"run_dir", "resume", "save_every", "keep", "weights", "weights_skip",
        "trace", "kineto", "trace_step"}},
      {"The pipeline",
       {"partitions", "balance", "chunks", "schedule", "stages_per_rank",
        "checkpoint", "deferred_batch_norm", "devices", "threads",
        "distributed", "data_parallel", "transfers", "own_address", "timeout",
        "heartbeat_timeout"}},
  };
  return all;
}

constexpr char kIntroduction[] =
    R"(train: trains one of gpipe's models through a pipeline.

These commands run without data, since the program generates some:
  train
  train --model=unet
  train --model=transformer

Labelled images, in one folder per class or as the files of CIFAR-10 or MNIST:
  train --model=resnet50 --data_dir=/data/cifar10 --run_dir=/runs/1 \
      --batch=128 --epochs=20 --optimizer=sgd --lr=0.1 \
      --lr_schedule=warmup:300,cosine:7500
Images with masks:
  train --model=unet --data_dir=/data/nuclei --size=128 \
      --precision=amp-bfloat16
A text:
  train --model=transformer --data_dir=/data/book.txt --clip=1 --accumulate=4
Fine-tuning of pretrained weights for other classes:
  train --model=resnet101 --data_dir=/data/flowers --weights=resnet101.pth \
      --weights_skip=fc.
Another schedule, in four processes: two replicas with two stages each:
  launch --nproc=4 -- train --distributed --data_parallel=2 --schedule=zb-h1

With --run_dir, the same command resumes a run that has ended for any reason.
Ctrl-C (or SIGTERM) ends the run after the current step, which is saved. A
second Ctrl-C ends it at once.

Exit codes: 0 all steps are done, 1 a flag or the data is wrong, 2 the run
failed, 3 the loss or a gradient is not finite, 130 and 143 stopped by Ctrl-C or
SIGTERM.
)";

constexpr std::size_t kWidth = 80;

// Prints `text` in lines that begin with `indent`.
void print_wrapped(std::ostream& out, const std::string& text,
                   const std::string& indent) {
  std::istringstream words(text);
  std::string line = indent;
  for (std::string word; words >> word;) {
    if (line.size() + word.size() + 1 > kWidth && line != indent) {
      out << line << "\n";
      line = indent;
    }
    line += (line == indent ? "" : " ") + word;
  }
  out << line << "\n";
}

// Returns the default with few digits. gflags prints all digits of 0.1.
std::string default_of(const gflags::CommandLineFlagInfo& flag) {
  if (flag.type != "double") return flag.default_value;
  std::ostringstream text;
  text << std::stod(flag.default_value);
  return text.str();
}

}  // namespace

std::vector<std::string> flags_in_help() {
  std::vector<std::string> names;
  for (const Group& group : groups()) {
    names.insert(names.end(), group.flags.begin(), group.flags.end());
  }
  return names;
}

void print_help(std::ostream& out) {
  out << kIntroduction;
  for (const Group& group : groups()) {
    out << "\n" << group.title << "\n";
    for (const std::string& name : group.flags) {
      const auto flag = gflags::GetCommandLineFlagInfoOrDie(name.c_str());
      out << "  --" << name << "=" << default_of(flag) << "\n";
      print_wrapped(out, flag.description, "      ");
    }
  }
}

Options options_of_flags() {
  Options options;
  TaskOptions& task = options.task;
  task.model = FLAGS_model;
  task.data = FLAGS_data_dir;
  task.held_out = FLAGS_held_out;
  task.size = FLAGS_size;
  task.crop = FLAGS_crop;
  task.flip = FLAGS_flip;
  task.skip_broken = FLAGS_skip_broken;
  task.batch = FLAGS_batch;
  task.seed = FLAGS_seed;
  task.amoebanet_layers = FLAGS_amoebanet_layers;
  task.amoebanet_filters = FLAGS_amoebanet_filters;
  task.unet_depth = FLAGS_unet_depth;
  task.unet_convs = FLAGS_unet_convs;
  task.unet_channels = FLAGS_unet_channels;
  task.transformer_layers = FLAGS_transformer_layers;
  task.transformer_width = FLAGS_transformer_width;
  task.transformer_heads = FLAGS_transformer_heads;
  task.transformer_dropout = FLAGS_transformer_dropout;
  task.length = FLAGS_length;
  EngineOptions& engine = options.engine;
  engine.partitions = FLAGS_partitions;
  engine.balance = FLAGS_balance;
  engine.chunks = FLAGS_chunks;
  engine.schedule = FLAGS_schedule;
  engine.stages_per_rank = FLAGS_stages_per_rank;
  engine.checkpoint = FLAGS_checkpoint;
  engine.deferred_batch_norm = FLAGS_deferred_batch_norm;
  engine.devices = FLAGS_devices;
  engine.threads = FLAGS_threads;
  engine.distributed = FLAGS_distributed;
  engine.data_parallel = FLAGS_data_parallel;
  engine.transfers = FLAGS_transfers;
  engine.own_address = FLAGS_own_address;
  engine.timeout = FLAGS_timeout;
  engine.heartbeat_timeout = FLAGS_heartbeat_timeout;
  OptimizerOptions& optimizer = options.optimizer;
  optimizer.name = FLAGS_optimizer;
  optimizer.lr = FLAGS_lr;
  optimizer.momentum = FLAGS_momentum;
  optimizer.weight_decay = FLAGS_weight_decay;
  optimizer.decay_norms = FLAGS_decay_norms;
  LoopOptions& loop = options.loop;
  loop.epochs = FLAGS_epochs;
  loop.steps = FLAGS_steps;
  loop.accumulate = FLAGS_accumulate;
  loop.lr_schedule = FLAGS_lr_schedule;
  loop.clip = FLAGS_clip;
  loop.precision = FLAGS_precision;
  loop.deterministic = FLAGS_deterministic;
  loop.eval_every = FLAGS_eval_every;
  loop.run_dir = FLAGS_run_dir;
  loop.resume = FLAGS_resume;
  loop.save_every = FLAGS_save_every;
  loop.keep = FLAGS_keep;
  loop.weights = FLAGS_weights;
  loop.weights_skip = FLAGS_weights_skip;
  loop.trace = FLAGS_trace;
  loop.kineto = FLAGS_kineto;
  loop.trace_step = FLAGS_trace_step;
  return options;
}

}  // namespace gpipe::trainer
