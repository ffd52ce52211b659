#include "trainer/flags.h"

#include <gflags/gflags.h>

#include <sstream>
#include <utility>

namespace {

const gpipe::trainer::Options kDefaults;

}  // namespace

// ---- The model and its data

DEFINE_string(model, kDefaults.task.model,
              "What to train: resnet50, resnet101 or amoebanetd on labelled "
              "images, unet on images with masks, transformer on a text.");
DEFINE_string(data_dir, kDefaults.task.data,
              "A folder with images/NAME.png and masks/NAME.png (or .jpg), "
              "white inside; a folder of labelled images: train/CLASS/ and "
              "test/CLASS/, or CLASS/ alone, with .jpg and .png files, or "
              "CIFAR-10's or MNIST's files; or a text file itself. '': data "
              "that the program draws.");
DEFINE_double(held_out, kDefaults.task.held_out,
              "The part of the data that is for testing, where it does not "
              "say itself.");
DEFINE_int64(size, kDefaults.task.size,
             "Height and width that images are brought to. 0: those that they "
             "have if that is at most 64, else 224; 64 with masks.");
DEFINE_string(crop, kDefaults.task.crop,
              "What training sees of a labelled image: none (all of it), "
              "padded (a place at random in it with a border, as usual for "
              "CIFAR-10), resized (a part of random area, as for ImageNet), "
              "auto (padded up to 64 pixels).");
DEFINE_bool(flip, kDefaults.task.flip,
            "Whether training sees every second image mirrored: not for "
            "digits.");
DEFINE_bool(skip_broken, kDefaults.task.skip_broken,
            "Go on without image files that cannot be read, naming each once. "
            "In training the next one takes its place, in testing none does.");
DEFINE_uint64(seed, kDefaults.task.seed,
              "Of weights, order, crops and dropout.");

DEFINE_int64(amoebanet_layers, kDefaults.task.amoebanet_layers,
             "Normal cells of amoebanetd, a multiple of 3.");
DEFINE_int64(amoebanet_filters, kDefaults.task.amoebanet_filters,
             "Filters of amoebanetd, a multiple of 8.");
DEFINE_int64(unet_depth, kDefaults.task.unet_depth, "Levels of unet.");
DEFINE_int64(unet_convs, kDefaults.task.unet_convs,
             "Convolutions per level of unet.");
DEFINE_int64(unet_channels, kDefaults.task.unet_channels,
             "Channels of the first level of unet.");
DEFINE_int64(transformer_layers, kDefaults.task.transformer_layers,
             "Blocks of attention and feed-forward.");
DEFINE_int64(transformer_width, kDefaults.task.transformer_width,
             "Of the blocks; feed-forward has four times that.");
DEFINE_int64(transformer_heads, kDefaults.task.transformer_heads,
             "Of the attention.");
DEFINE_double(transformer_dropout, kDefaults.task.transformer_dropout,
              "Probability, 0 to below 1.");
DEFINE_int64(length, kDefaults.task.length,
             "Characters that transformer sees at once.");

// ---- The pipeline

DEFINE_int64(partitions, kDefaults.engine.partitions,
             "Workers that share the model in this process, each with a "
             "device (on a CPU a share of the cores).");
DEFINE_string(balance, kDefaults.engine.balance,
              "How the layers are cut: time (they are timed), size (their "
              "memory is counted), or layers per stage, as in 100,83. A run "
              "that goes on keeps its cut if it has as many stages.");
DEFINE_int64(chunks, kDefaults.engine.chunks,
             "Micro-batches that a mini-batch is split into (with "
             "--data_parallel: a copy's part of it).");
DEFINE_string(schedule, kDefaults.engine.schedule,
              "Who does what when: fill-drain (GPipe), 1f1b, eager-1f1b, "
              "interleaved-1f1b, looped-bfs, zb-h1, zb-h2, zb-interleaved, "
              "zbv, v-half, v-min, dualpipe-v.");
DEFINE_int64(stages_per_rank, kDefaults.engine.stages_per_rank,
             "Parts of the model that each worker has, where the schedule "
             "leaves the choice (interleaved-1f1b, looped-bfs, "
             "zb-interleaved).");
DEFINE_string(checkpoint, kDefaults.engine.checkpoint,
              "Micro-batches whose activations are computed again in the "
              "backward, to save memory: never, except_last, always.");
DEFINE_bool(deferred_batch_norm, kDefaults.engine.deferred_batch_norm,
            "Running statistics of BatchNorm are those of mini-batches and "
            "not of micro-batches.");
DEFINE_string(devices, kDefaults.engine.devices,
              "One per worker, as in cuda:0,cuda:1 or cpu,cpu; one may come "
              "several times. '': all accelerators, or the CPU. With "
              "--distributed: of the processes of a machine, in turn.");
DEFINE_int64(threads, kDefaults.engine.threads,
             "Of each worker on a CPU, inside of operators. 0: an equal share "
             "of the cores. Equal numbers give equal bits.");
DEFINE_bool(distributed, kDefaults.engine.distributed,
            "Each worker is a process; which one this is, is read from the "
            "variables of torchrun, Slurm, MPI or tools/launch. --partitions "
            "does not count then.");
DEFINE_int64(data_parallel, kDefaults.engine.data_parallel,
             "With --distributed: copies of the pipeline, which share each "
             "mini-batch. The number of processes is a multiple.");
DEFINE_string(transfers, kDefaults.engine.transfers,
              "The way of tensors between accelerators: 'host', through its "
              "memory, 'direct', by NCCL, or 'auto', which is 'host'.");
DEFINE_string(own_address, kDefaults.engine.own_address,
              "With --distributed: the address of this machine that others "
              "connect to. '': the one that packets to MASTER_ADDR leave "
              "from.");
DEFINE_double(timeout, kDefaults.engine.timeout,
              "With --distributed: seconds to wait for another process or a "
              "message; more than a step takes, or an evaluation.");
DEFINE_double(heartbeat_timeout, kDefaults.engine.heartbeat_timeout,
              "With --distributed: seconds after which a process that says "
              "nothing counts as frozen.");

// ---- Steps

DEFINE_int64(epochs, kDefaults.loop.epochs,
             "How often all of the training data is seen.");
DEFINE_int64(steps, kDefaults.loop.steps,
             "Optimizer steps, in place of --epochs. 0: by --epochs.");
DEFINE_int64(batch, kDefaults.task.batch,
             "Images (or windows of a text) per mini-batch, of all copies "
             "together.");
DEFINE_int64(accumulate, kDefaults.loop.accumulate,
             "Mini-batches whose gradients make one optimizer step.");
DEFINE_string(optimizer, kDefaults.optimizer.name,
              "sgd, adam, adamw, rmsprop or adagrad.");
DEFINE_double(lr, kDefaults.optimizer.lr, "The base learning rate.");
DEFINE_string(lr_schedule, kDefaults.loop.lr_schedule,
              "What --lr is multiplied by, as a function of the step: "
              "constant, cosine:N, linear:N, polynomial:N:P or step:N:G, with "
              "N in steps; before it warmup:N, after it floor:F, with commas, "
              "as in warmup:500,cosine:10000,floor:0.1.");
DEFINE_double(momentum, kDefaults.optimizer.momentum, "Of sgd and rmsprop.");
DEFINE_double(weight_decay, kDefaults.optimizer.weight_decay,
              "Of the weights of layers; decoupled with adamw.");
DEFINE_bool(decay_norms, kDefaults.optimizer.decay_norms,
            "Weight decay of biases and of the weights of normalisations, "
            "too.");
DEFINE_double(clip, kDefaults.loop.clip,
              "The largest norm that the gradient of all parameters, as one "
              "vector, may have; longer ones are shortened. 0: any.");
DEFINE_string(precision, kDefaults.loop.precision,
              "float32; amp-float16 or amp-bfloat16 (parameters in float32, "
              "operators in half precision where that is safe; losses are "
              "scaled for float16); bfloat16 (all of it).");
DEFINE_bool(deterministic, kDefaults.loop.deterministic,
            "The same bits in each run on the same machines: LibTorch's "
            "deterministic operators (an error where there is none), and sums "
            "in the order of the micro-batches.");
DEFINE_int64(eval_every, kDefaults.loop.eval_every,
             "Steps between tests on the data that was held out. 0: once an "
             "epoch, -1: never.");

// ---- The run

DEFINE_string(run_dir, kDefaults.loop.run_dir,
              "A folder for this run: saved steps, metrics.csv, and the same "
              "for TensorBoard. '': nothing is kept.");
DEFINE_string(
    resume, kDefaults.loop.resume,
    "auto: go on from the newest step in --run_dir that is whole, or begin "
    "where there is no step; none: begin anew, in a folder without any; or "
    "the number of a step.");
DEFINE_int64(save_every, kDefaults.loop.save_every,
             "Steps between those that are saved. 0: at the end only, or when "
             "it is stopped.");
DEFINE_int64(keep, kDefaults.loop.keep, "How many saved steps are kept.");
DEFINE_string(weights, kDefaults.loop.weights,
              "Weights to begin with: a .pt, .pth or .safetensors file, for "
              "resnet50 and resnet101 also with torchvision's names.");
DEFINE_string(weights_skip, kDefaults.loop.weights_skip,
              "Tensors that --weights is not asked for, by the beginnings of "
              "their names, with commas: 'fc.' where the number of classes "
              "differs.");
DEFINE_string(trace, kDefaults.loop.trace,
              "A file that shows when each worker did what in one step, for "
              "ui.perfetto.dev.");
DEFINE_string(kineto, kDefaults.loop.kineto,
              "The same for all operators, by LibTorch's profiler.");
DEFINE_int64(trace_step, kDefaults.loop.trace_step,
             "Which step of --trace and --kineto, counted from the program's "
             "start; from 1.");

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
    R"(train: trains a model of the zoo through a pipeline.

Any of these runs as it stands, on data that it draws:
  train
  train --model=unet
  train --model=transformer

Labelled images, a folder per class, or CIFAR-10's or MNIST's files:
  train --model=resnet50 --data_dir=/data/cifar10 --run_dir=/runs/1 \
      --batch=128 --epochs=20 --optimizer=sgd --lr=0.1 \
      --lr_schedule=warmup:300,cosine:7500
Images with masks:
  train --model=unet --data_dir=/data/nuclei --size=128 \
      --precision=amp-bfloat16
A text:
  train --model=transformer --data_dir=/data/book.txt --clip=1 --accumulate=4
From other weights, for other classes:
  train --model=resnet101 --data_dir=/data/flowers --weights=resnet101.pth \
      --weights_skip=fc.
By another schedule, in four processes, of which two share each mini-batch:
  launch --nproc=4 -- train --distributed --data_parallel=2 --schedule=zb-h1

With --run_dir the same command goes on where it was, whatever has ended it.
Ctrl-C (or SIGTERM) ends it after the step that is being made, which is saved; a
second one at once.

Exit codes: 0 all steps are made, 1 a flag or the data is wrong, 2 it failed, 3
the loss or a gradient was not finite, 130 and 143 stopped by Ctrl-C or SIGTERM.
)";

constexpr std::size_t kWidth = 80;

// `text` in lines that begin with `indent`.
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

// gflags writes 0.1 with all its digits.
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
