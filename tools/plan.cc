// Plans how to run a model as a pipeline: partitions, schedule, number of
// micro-batches, checkpointing and offload, with the predicted time and memory.
//
//   ./bazelw run //tools:plan -- --model=resnet101 --partitions=4 --batch=128
//   ./bazelw run //tools:plan -- --profile=/folder/profile.json --batch=128
//       --machines=/folder/machines.json
#include "balancing/plan.h"

#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>
#include <gflags/gflags.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "balancing/infeasible.h"
#include "balancing/machines.h"
#include "balancing/plan_replicas.h"
#include "balancing/profile.h"
#include "gpipe/base/devices.h"
#include "gpipe/base/files.h"
#include "gpipe/base/program.h"
#include "gpipe/base/run_main.h"
#include "gpipe/base/text.h"
#include "gpipe/schedule.h"
#include "gpipe/schedule/microbatches.h"
#include "gpipe/simulation.h"
#include "models/lora.h"
#include "models/named.h"

namespace balancing = gpipe::balancing;
namespace models = gpipe::models;
using models::ModelOptions;

// Returns the end of a flag's help: the usual values of sizes of models, for
// example "amoebanetd 64, unet 16".
std::string usual_values(const std::vector<int64_t ModelOptions::*>& sizes) {
  std::vector<std::string> values;
  for (const std::string& name : models::model_names()) {
    for (const models::ModelSize& size : models::model_sizes(name)) {
      if (std::find(sizes.begin(), sizes.end(), size.option) != sizes.end()) {
        values.push_back(name + " " + std::to_string(size.usual));
      }
    }
  }
  return absl::StrJoin(values, ", ");
}

const std::string kModels = absl::StrJoin(models::model_names(), ", ");
const std::string kModelHelp = "The model: " + kModels + ".";
const std::string kLayersHelp =
    "Number of layers of the model, or its convolutions per level. 0: " +
    usual_values({&ModelOptions::layers, &ModelOptions::convolutions}) + ".";
const std::string kWidthHelp =
    "Width of the model, or its number of filters or channels. 0: " +
    usual_values({&ModelOptions::width}) + ".";

DEFINE_string(model, "", kModelHelp.c_str());
DEFINE_string(profile, "",
              "A profile instead of a model: a JSON file written by "
              "--write_profile.");
DEFINE_string(write_profile, "",
              "Measure --model with a micro-batch of --batch rows, print what "
              "each layer keeps for backward, write the profile to this file, "
              "and do not plan.");
DEFINE_int64(batch, 32, "Rows of a mini-batch.");
DEFINE_int64(size, 64, "Height and width of images, or tokens per sequence.");
DEFINE_int64(layers, 0, kLayersHelp.c_str());
DEFINE_int64(width, 0, kWidthHelp.c_str());
DEFINE_int64(lora_rank, 0,
             "Plan for adapters of this rank beside frozen weights (LoRA). 0: "
             "all weights are trained.");
DEFINE_string(lora_targets, "out_proj,linear1,linear2",
              "With --lora_rank: the linear modules that get adapters, by the "
              "last parts of their names. The default is that of transformer.");
DEFINE_int64(partitions, 2, "Number of partitions, one per device.");
DEFINE_double(memory_gib, std::numeric_limits<double>::infinity(),
              "Memory of each device, in GiB.");
const std::string kSchedules =
    absl::StrJoin(gpipe::training_schedule_names(), ", ");
const std::string kSchedulesHelp =
    "The schedules of train_step() to try, for example 1f1b,zb-h1. '': all, "
    "which are " +
    kSchedules + ".";
DEFINE_string(schedule, "", kSchedulesHelp.c_str());
DEFINE_string(stages_per_rank, "1,2,4",
              "Numbers of stages per rank to try, with schedules that have a "
              "choice or that have just that many.");
DEFINE_bool(offload, false,
            "Also try to keep on the host what backwards need. Plans for "
            "accelerators, see --device.");
DEFINE_string(device, "cpu",
              "The type of the devices that are planned for: cpu, cuda, ... "
              "CPUs share the cores of this machine.");
DEFINE_string(machines, "",
              "A JSON file that describes devices, hosts and links "
              "(balancing/machines.h), instead of --partitions, --device, "
              "--memory_gib, --latency, --bandwidth_gb and "
              "--host_bandwidth_gb.");
DEFINE_string(data_parallel, "1",
              "Numbers of replicas of the pipeline to try, for example 1,2,4, "
              "which share the devices and the mini-batch. Needs --profile.");
DEFINE_bool(shard_optimizer, false,
            "Each replica keeps the optimizer's state for its share of the "
            "parameters only.");
DEFINE_string(json, "", "Also write the plan to this file, as JSON.");
DEFINE_string(svg, "", "Also draw the predicted step into this file, as SVG.");
DEFINE_double(host_bandwidth_gb, std::numeric_limits<double>::infinity(),
              "Bandwidth between each device and its host, in 10^9 bytes per "
              "second, for --offload.");
DEFINE_string(chunks, "",
              "Numbers of micro-batches to try, for example 4,8,16.");
DEFINE_string(checkpoint, "",
              "Only this checkpointing mode: always, except_last or never. '': "
              "try all three.");
DEFINE_double(
    param_scale, 2,
    "Total bytes per byte of parameters: 2 for SGD, 3 for SGD with momentum, "
    "4 for Adam.");
DEFINE_double(latency, 0, "Latency of a copy to another device, in seconds.");
DEFINE_double(bandwidth_gb, std::numeric_limits<double>::infinity(),
              "Bandwidth of copies to another device, in 10^9 bytes per "
              "second.");
DEFINE_int64(workers, 0,
             "Number of partitions that can run at the same time. 0: the "
             "number for which this machine has cores.");
DEFINE_double(timeout, 1, "Seconds to measure, for each number of chunks.");

struct Subject {
  torch::nn::Sequential model;
  torch::Tensor input;
};

Subject make_subject() {
  TORCH_CHECK_VALUE(!FLAGS_model.empty(), "give a --model (", kModels,
                    ") or a --profile");
  ModelOptions options = models::default_options(FLAGS_model);
  options.sequence = FLAGS_size;
  if (FLAGS_layers > 0) options.layers = options.convolutions = FLAGS_layers;
  if (FLAGS_width > 0) options.width = FLAGS_width;
  const bool text =
      models::data_kind_of(FLAGS_model) == models::DataKind::kText;
  torch::nn::Sequential model = models::named_model(FLAGS_model, options);
  if (FLAGS_lora_rank != 0) {
    model = gpipe::add_lora(
        model, gpipe::LoraOptions()
                   .rank(FLAGS_lora_rank)
                   .targets(gpipe::split_list(FLAGS_lora_targets)));
  }
  return {model, text ? torch::randint(options.vocabulary,
                                       {FLAGS_batch, FLAGS_size}, torch::kLong)
                      : torch::rand({FLAGS_batch, 3, FLAGS_size, FLAGS_size})};
}

// Returns options that print the progress if stderr is a terminal.
balancing::TimeOptions time_options() {
  auto options = balancing::TimeOptions().timeout(FLAGS_timeout);
  if (isatty(STDERR_FILENO)) {
    options.progress([](double part) {
      std::cerr << "\rmeasuring: " << std::lround(100 * part) << " %  "
                << (part < 1 ? "" : "\n") << std::flush;
    });
  }
  return options;
}

balancing::PlanOptions plan_options() {
  balancing::PlanOptions options;
  options
      .chunks(gpipe::with_value_error(
          [] { return gpipe::parse_numbers("chunks", FLAGS_chunks); }))
      .param_scale(FLAGS_param_scale)
      .latency(FLAGS_latency)
      .bandwidth(FLAGS_bandwidth_gb * 1e9)
      .workers(FLAGS_workers)
      .schedules(gpipe::split_list(FLAGS_schedule))
      .stages_per_rank(gpipe::with_value_error([] {
        return gpipe::parse_positive_list("stages_per_rank",
                                          FLAGS_stages_per_rank);
      }))
      .offload(FLAGS_offload)
      .profile(time_options());
  if (!FLAGS_checkpoint.empty()) {
    options.checkpoints({gpipe::with_value_error(
        [] { return gpipe::parse_checkpoint(FLAGS_checkpoint); })});
  }
  return options;
}

// Returns the type --device.
torch::DeviceType device_type() {
  try {
    return torch::Device(FLAGS_device).type();
  } catch (const c10::Error&) {
    TORCH_CHECK_VALUE(false, "--device=", FLAGS_device,
                      ": must be the type of a device: cpu, cuda, xpu, ...");
  }
}

// Returns device `index` of the type --device.
torch::Device device_of(int64_t index) {
  const torch::DeviceType type = device_type();
  if (type == torch::kCPU) return type;
  constexpr int64_t kLast = std::numeric_limits<torch::DeviceIndex>::max();
  TORCH_CHECK_VALUE(index <= kLast, "--partitions=", FLAGS_partitions,
                    ": LibTorch numbers at most ", kLast + 1,
                    " devices of a machine; describe several machines with "
                    "--machines");
  return {type, static_cast<torch::DeviceIndex>(index)};
}

// Returns the devices, and sets the links of `options` if --machines is given.
std::vector<balancing::PlanDevice> devices_for(
    balancing::PlanOptions& options) {
  if (!FLAGS_machines.empty()) {
    gpipe::check_unused({"partitions", "device", "memory_gib", "latency",
                         "bandwidth_gb", "host_bandwidth_gb"},
                        "has no meaning with --machines, which has the "
                        "devices");
    balancing::Machines machines = balancing::read_machines(FLAGS_machines);
    options.links(std::move(machines.links));
    return std::move(machines.devices);
  }
  TORCH_CHECK_VALUE(FLAGS_memory_gib >= 0, "--memory_gib=", FLAGS_memory_gib,
                    ": must be at least 0");
  for (const auto& [flag, gigabytes] :
       {std::pair("bandwidth_gb", FLAGS_bandwidth_gb),
        std::pair("host_bandwidth_gb", FLAGS_host_bandwidth_gb)}) {
    TORCH_CHECK_VALUE(gigabytes > 0, "--", flag, "=", gigabytes,
                      ": must be above 0");
  }
  std::vector<balancing::PlanDevice> devices;
  for (int64_t k = 0; k < FLAGS_partitions; ++k) {
    devices.push_back(balancing::PlanDevice(device_of(k))
                          .memory_bytes(balancing::usable_memory(
                              device_of(k), FLAGS_memory_gib * std::pow(2, 30)))
                          .host_bandwidth(FLAGS_host_bandwidth_gb * 1e9));
  }
  return devices;
}

void write(const std::string& path, const std::string& text) {
  gpipe::internal::write_file(path, text);
  std::cout << "wrote " << path << "\n";
}

// Plans for --profile with each number of --data_parallel. Prints a line for
// each, and returns the plan of a replica of the fastest.
balancing::Plan plan_of_profile(
    const std::vector<balancing::PlanDevice>& devices,
    const balancing::PlanOptions& options) {
  const auto replicas = gpipe::with_value_error([] {
    return gpipe::parse_positive_list("data_parallel", FLAGS_data_parallel);
  });
  auto plans = balancing::plan_replicas(balancing::read_profile(FLAGS_profile),
                                        FLAGS_batch, devices, replicas,
                                        FLAGS_shard_optimizer, options);
  for (const balancing::ReplicatedPlan& each : plans) {
    if (replicas.size() == 1 && replicas[0] == 1) break;
    std::cout << each.replicas << " replicas of " << each.plan.partitions.size()
              << " devices: " << gpipe::seconds_text(each.plan.step_seconds)
              << ", of which " << gpipe::seconds_text(each.plan.sum_seconds)
              << " are for the sums of gradients\n";
  }
  return std::move(plans[0].plan);
}

void run() {
  TORCH_CHECK_VALUE(
      FLAGS_batch >= 1 && FLAGS_size >= 1 && FLAGS_partitions >= 1,
      "--batch, --size and --partitions must be at least 1");
  // A plan has at most one device per layer.
  constexpr int64_t kMost = 1 << 16;
  TORCH_CHECK_VALUE(FLAGS_partitions <= kMost,
                    "--partitions=", FLAGS_partitions, " must be at most ",
                    kMost);
  TORCH_CHECK_VALUE(FLAGS_layers >= 0 && FLAGS_width >= 0,
                    "--layers=", FLAGS_layers, " and --width=", FLAGS_width,
                    " must be at least 0, which is the usual value");
  if (FLAGS_lora_rank == 0) {
    gpipe::check_unused({"lora_targets"}, "has no meaning without --lora_rank");
  }
  if (!FLAGS_profile.empty()) {
    gpipe::check_unused({"model", "layers", "width", "lora_rank", "size",
                         "timeout", "write_profile"},
                        "has no meaning with --profile");
  }
  if (!FLAGS_model.empty()) {
    const std::string why = "has no meaning with --model=" + FLAGS_model;
    if (!models::has_size(FLAGS_model, &ModelOptions::layers) &&
        !models::has_size(FLAGS_model, &ModelOptions::convolutions)) {
      gpipe::check_unused({"layers"}, why);
    }
    if (!models::has_size(FLAGS_model, &ModelOptions::width)) {
      gpipe::check_unused({"width"}, why);
    }
  }
  if (!FLAGS_offload) {
    gpipe::check_unused({"host_bandwidth_gb"},
                        "has no meaning without --offload");
  }
  if (FLAGS_data_parallel == "1") {
    gpipe::check_unused({"shard_optimizer"},
                        "needs a --data_parallel of 2 or more");
  }
  gpipe::check_output_files(
      {{"json", FLAGS_json},
       {"svg", FLAGS_svg},
       {"write_profile", FLAGS_write_profile}},
      {{"profile", FLAGS_profile}, {"machines", FLAGS_machines}});
  if (!FLAGS_write_profile.empty()) {
    const auto [model, input] = make_subject();
    const balancing::Profile profile =
        balancing::profile(model, input, time_options().split_backward(true));
    balancing::write_profile(profile, FLAGS_write_profile);
    std::cout << balancing::kept_text(profile) << "wrote "
              << FLAGS_write_profile << "\n";
    return;
  }
  TORCH_CHECK_VALUE(!FLAGS_profile.empty() ||
                        (FLAGS_data_parallel == "1" && !FLAGS_shard_optimizer),
                    "--data_parallel and --shard_optimizer need a --profile; "
                    "--write_profile makes one");
  auto options = plan_options();
  const std::vector<balancing::PlanDevice> devices = devices_for(options);
  balancing::Plan plan;
  if (!FLAGS_profile.empty()) {
    plan = plan_of_profile(devices, options);
  } else {
    const auto [model, input] = make_subject();
    plan = balancing::plan(model, input, devices, options);
  }
  std::cout << plan << "balance: " << absl::StrJoin(plan.balance, ",") << "\n";
  if (!FLAGS_json.empty()) write(FLAGS_json, balancing::to_json(plan));
  if (!FLAGS_svg.empty()) write(FLAGS_svg, gpipe::to_svg(plan.timeline));
}

int main(int argc, char** argv) {
  const auto body = [] {
    try {
      run();
    } catch (const balancing::InfeasibleError& error) {
      TORCH_CHECK_VALUE(false, "nothing fits: ", error.what());
    }
  };
  return gpipe::run_main(argc, argv, "plan", "plans a pipeline", "tools/plan",
                         body);
}
