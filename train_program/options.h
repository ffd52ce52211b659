// The options of a training run. flags.cc defines a flag for each of them and
// explains it. No LibTorch.
#pragma once

#include <cstdint>
#include <string>

namespace gpipe::trainer {

// Options of the model and its data.
struct TaskOptions {
  std::string model = "resnet50";
  std::string data;  // a path; "" generates data
  double held_out = 0.1;
  int64_t size = 0;  // 0: depends on the data
  std::string crop = "auto";
  bool flip = true;
  bool skip_broken = false;
  int64_t batch = 32;
  uint64_t seed = 0;

  int64_t amoebanet_layers = 6;
  int64_t amoebanet_filters = 64;
  int64_t unet_depth = 3;
  int64_t unet_convs = 2;
  int64_t unet_channels = 16;
  int64_t transformer_layers = 4;
  int64_t transformer_width = 128;
  int64_t transformer_heads = 4;
  double transformer_dropout = 0.1;
  int64_t length = 128;
};

// Options of the pipeline.
struct EngineOptions {
  int64_t partitions = 2;
  std::string balance = "time";
  int64_t chunks = 4;
  std::string schedule = "1f1b";
  int64_t stages_per_rank = 1;
  std::string checkpoint = "except_last";
  bool deferred_batch_norm = false;
  std::string devices;  // "": all accelerators, or the CPU
  int64_t threads = 0;
  bool distributed = false;
  int64_t data_parallel = 1;
  std::string transfers = "auto";
  std::string own_address;
  double timeout = 600;
  double heartbeat_timeout = 30;
};

// Options of the optimizer.
struct OptimizerOptions {
  std::string name = "adamw";
  double lr = 0.001;
  double momentum = 0.9;
  double weight_decay = 0.01;
  bool decay_norms = false;
};

// Options of the training loop.
struct LoopOptions {
  int64_t epochs = 10;
  int64_t steps = 0;  // 0: set by `epochs`
  int64_t accumulate = 1;
  std::string lr_schedule = "constant";
  double clip = 0;
  std::string precision = "float32";
  bool deterministic = false;
  int64_t eval_every = 0;  // 0: once per epoch; -1: never
  std::string run_dir;
  std::string resume = "auto";
  int64_t save_every = 500;
  int64_t keep = 2;
  std::string weights;
  std::string weights_skip;
  std::string trace;
  std::string kineto;
  int64_t trace_step = 3;
};

// All options of a run.
struct Options {
  TaskOptions task;
  EngineOptions engine;
  OptimizerOptions optimizer;
  LoopOptions loop;
};

}  // namespace gpipe::trainer
