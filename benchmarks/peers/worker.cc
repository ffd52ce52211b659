// Our side of tools/compare_peers: a training step for every line that comes,
// as worker.py, where the protocol is, makes them with the peers' engines.

#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>
#include <torch/version.h>

#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

// After LibTorch's headers, which define the same macros unless glog has.
#include <gflags/gflags.h>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/parse.h"
#include "benchmarks/harness/program.h"
#include "benchmarks/harness/throughput.h"
#include "benchmarks/peers/process_memory.h"
#include "benchmarks/peers/subject.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"

DEFINE_string(model, "mlp", "resnet101, unet, amoebanetd, mlp, transformer.");
DEFINE_int64(batch, 512, "Rows of a mini-batch.");
DEFINE_int64(depth, 32, "Levels, cells, blocks or layers.");
DEFINE_int64(width, 512, "Channels or features.");
DEFINE_int64(side, 64, "Pixels of images' sides, tokens of sequences.");
DEFINE_string(engine, "gpipe",
              "gpipe: forward(), loss, backward(). Else train_step() by a "
              "schedule: 1f1b, zb-h1, ...");
DEFINE_string(balance, "32,32", "Layers per partition.");
DEFINE_int64(microbatches, 4, "Micro-batches of a step.");
DEFINE_string(checkpoint, "never", "always, except_last, never.");
DEFINE_double(learning_rate, 0.01, "Of plain SGD.");
DEFINE_uint64(seed, 0, "Of weights and data.");

namespace gpipe::benchmarks {
namespace {

// A step's loss.
using Step = std::function<double()>;

Step forward_and_backward(GPipe pipeline, const Subject& subject) {
  return [=]() mutable {
    const at::Tensor loss =
        subject.loss(pipeline->forward(subject.input), subject.target);
    loss.backward();
    return loss.item<double>();
  };
}

Step by_schedule(GPipe pipeline, const Subject& subject) {
  const Schedule schedule =
      named_schedule(FLAGS_engine, static_cast<int>(pipeline->devices().size()),
                     static_cast<int>(FLAGS_microbatches), 1);
  return [=]() mutable {
    return pipeline
        ->train_step(subject.input, subject.target, subject.loss, schedule)
        .loss.item<double>();
  };
}

void serve() {
  at::set_num_threads(1);
  const auto balance = parse_positive_list("balance", FLAGS_balance);
  const Subject subject = make_subject(
      FLAGS_model, {FLAGS_batch, FLAGS_depth, FLAGS_width, FLAGS_side},
      FLAGS_seed);
  const GPipe pipeline(
      subject.model,
      GPipeOptions(balance)
          .devices(std::vector<torch::Device>(balance.size(), at::kCPU))
          .chunks(FLAGS_microbatches)
          .checkpoint(parse_checkpoint(FLAGS_checkpoint))
          .threads_per_partition(1));
  const Step step = FLAGS_engine == "gpipe"
                        ? forward_and_backward(pipeline, subject)
                        : by_schedule(pipeline, subject);
  const auto parameters = pipeline->parameters();
  torch::optim::SGD optimizer(parameters,
                              torch::optim::SGDOptions(FLAGS_learning_rate));
  int64_t count = 0;
  for (const at::Tensor& parameter : parameters) count += parameter.numel();

  const ProcessMemory memory;
  std::cout << "READY " << count << " " << pipeline->size() << " "
            << TORCH_VERSION << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "step") {
      const Stopwatch watch({at::Device(at::kCPU)});
      const double loss = step();
      optimizer.step();
      optimizer.zero_grad();
      const Duration took = watch.elapsed();
      std::cout << took.wall_seconds << " " << took.cpu_seconds << " " << loss
                << std::endl;
    } else if (line == "peak") {
      std::cout << memory.peak_mib() << std::endl;
    } else {
      throw std::runtime_error("neither 'step' nor 'peak' on the input: " +
                               line);
    }
  }
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  const gpipe::benchmarks::Program program{
      "worker",
      "makes a training step for each line 'step' on its input and\n"
      "says how long it took; for tools/compare_peers.",
      {"--model=mlp --engine=1f1b"}};
  return gpipe::benchmarks::run_program(argc, argv, program, [] {
    gpipe::benchmarks::serve();
    return gpipe::benchmarks::kOk;
  });
}
