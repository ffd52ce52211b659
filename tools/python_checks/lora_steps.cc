// Trains the adapters of an exported program for
// tools/python_checks/lora_python_check.sh, which trains the same ones with
// Python's PEFT.
//
//   bazel-bin/tools/lora_steps --in=/a/llama.pt2 --adapter=/a/adapter
//       --data=/a/data.safetensors --out=/a/ours --partitions=2
#include <gflags/gflags.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/base/instruments.h"
#include "gpipe/base/run_main.h"
#include "gpipe/base/text.h"
#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/schedule/microbatches.h"
#include "models/exported/exported.h"
#include "models/lora.h"
#include "models/weights/safetensors.h"

DEFINE_string(in, "",
              "The program, with tokens as input and logits as output.");
DEFINE_string(adapter, "", "The folder of PEFT with the initial adapter.");
DEFINE_string(data, "",
              "A .safetensors file with the tensors input and target, [steps, "
              "rows, tokens].");
DEFINE_string(out, "",
              "The folder for losses.txt (hexadecimal), the adapter, and "
              "logits.safetensors (one process only): those of the first rows "
              "in eval mode, with the adapter and with merged weights. Each "
              "process writes peak-RANK.txt: the most bytes of its tensors.");
DEFINE_int64(partitions, 1, "Partitions, if there is one process.");
DEFINE_string(balance, "", "Layers per partition. '': about equally many.");
DEFINE_bool(distributed, false,
            "One partition per process, see //tools:launch.");
DEFINE_int64(chunks, 4, "Micro-batches.");
DEFINE_string(schedule, "1f1b", "The schedule.");
DEFINE_string(checkpoint, "never", "Which micro-batches are recomputed.");
DEFINE_double(lr, 0.1, "The learning rate of SGD with momentum 0.9.");

namespace {

using gpipe::StateDict;

std::vector<int64_t> balance_of(int64_t layers, int64_t partitions) {
  if (!FLAGS_balance.empty()) {
    return gpipe::parse_positive_list("balance", FLAGS_balance);
  }
  std::vector<int64_t> balance;
  for (int64_t k = 0; k < partitions; ++k) {
    balance.push_back(layers * (k + 1) / partitions - layers * k / partitions);
  }
  return balance;
}

// Returns `layers` with the adapter of --adapter.
gpipe::ExportedModel adapted(gpipe::ExportedModel model, bool whole) {
  model = gpipe::add_lora(model, gpipe::read_lora_options(FLAGS_adapter));
  gpipe::load_lora(FLAGS_adapter, *model.layers, whole);
  return model;
}

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1),
                                              target.flatten());
}

std::string path(const char* name) {
  return (std::filesystem::path(FLAGS_out) / name).string();
}

void train() {
  gpipe::instruments::CountingAllocator::install();
  torch::set_num_threads(1);
  const auto world =
      FLAGS_distributed
          ? gpipe::World::connect(gpipe::WorldOptions::from_environment())
          : nullptr;
  const gpipe::ExportedFile file(FLAGS_in);
  const int64_t partitions = world ? world->size() : FLAGS_partitions;
  const auto balance = balance_of(file.size(), partitions);
  const auto checkpoint = gpipe::parse_checkpoint(FLAGS_checkpoint);
  std::shared_ptr<gpipe::PipelineModule> pipeline;
  gpipe::ExportedModel model;
  if (world) {
    pipeline = gpipe::DistributedPipeline(
                   [&](int64_t first, int64_t count) {
                     return adapted(file.read(first, count), false).layers;
                   },
                   gpipe::DistributedOptions(balance)
                       .chunks(FLAGS_chunks)
                       .checkpoint(checkpoint)
                       .threads(1),
                   world)
                   .ptr();
  } else {
    model = adapted(file.read(0, file.size()), true);
    pipeline =
        gpipe::GPipe(model.layers,
                     gpipe::GPipeOptions(balance)
                         .devices(std::vector<at::Device>(partitions, at::kCPU))
                         .chunks(FLAGS_chunks)
                         .checkpoint(checkpoint)
                         .threads_per_partition(1))
            .ptr();
  }
  const auto schedule =
      gpipe::named_schedule(FLAGS_schedule, static_cast<int>(partitions),
                            static_cast<int>(FLAGS_chunks), 1);
  const StateDict data = gpipe::read_safetensors(FLAGS_data).tensors;
  torch::optim::SGD optimizer(pipeline->optimizer_parameters(),
                              torch::optim::SGDOptions(FLAGS_lr).momentum(0.9));
  std::filesystem::create_directories(FLAGS_out);
  std::ofstream losses;
  const bool writes = !world || world->rank() == 0;
  if (writes) losses.open(path("losses.txt"));
  for (int64_t k = 0; k < data["input"].size(0); ++k) {
    optimizer.zero_grad();
    const auto result = pipeline->train_step(
        data["input"][k], data["target"][k], loss_of, schedule,
        gpipe::TrainOptions().fixed_sum_order(true));
    optimizer.step();
    // Only the last rank has the losses.
    std::string line;
    for (const at::Tensor& each : result.losses) {
      char text[64];
      std::snprintf(text, sizeof(text), "%a ", each.item<double>());
      line += text;
    }
    if (world) line = gpipe::all_gather(*world, line).back();
    if (writes) losses << line << "\n";
  }
  const int rank = world ? world->rank() : 0;
  std::ofstream(path(("peak-" + std::to_string(rank) + ".txt").c_str()))
      << gpipe::instruments::CountingAllocator::peak_bytes() << "\n";
  std::string mine = gpipe::safetensors_bytes(
      gpipe::lora_state_dict(*pipeline),
      {{"fan_in_fan_out", gpipe::lora_fan_in_fan_out(*pipeline) ? "1" : ""}});
  std::vector<std::string> all{mine};
  if (world) all = gpipe::all_gather(*world, mine);
  if (!writes) return;
  StateDict adapter;
  bool fan_in_fan_out = false;
  for (const std::string& each : all) {
    const auto part = gpipe::parse_safetensors(each.data(), each.size());
    fan_in_fan_out |= !part.metadata.at("fan_in_fan_out").empty();
    for (const auto& item : part.tensors)
      adapter.insert(item.key(), item.value());
  }
  gpipe::save_lora(path("adapter"), adapter,
                   gpipe::read_lora_options(FLAGS_adapter), fan_in_fan_out);
  if (world) return;
  const at::NoGradGuard no_grad;
  model.layers->eval();
  StateDict logits;
  logits.insert("adapted", model.layers->forward(data["input"][0]));
  gpipe::merge_lora(*model.layers);
  logits.insert("merged", model.layers->forward(data["input"][0]));
  gpipe::write_safetensors(path("logits.safetensors"), logits);
  gpipe::write_safetensors(path("merged.safetensors"), model.state_dict());
}

}  // namespace

int main(int argc, char** argv) {
  return gpipe::run_main(
      argc, argv, "lora_steps",
      "trains adapters for tools/python_checks/lora_python_check.sh",
      "tools/python_checks/lora_steps", train, /*failed=*/1);
}
