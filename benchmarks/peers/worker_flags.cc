#include "benchmarks/peers/worker_flags.h"

#include <absl/strings/str_join.h>
#include <gflags/gflags.h>

#include "benchmarks/peers/exported_peer.h"
#include "gpipe/base/devices.h"
#include "gpipe/base/text.h"
#include "gpipe/schedule.h"
#include "gpipe/schedule/microbatches.h"
#include "models/exported/exported.h"

DEFINE_string(model, "mlp",
              "Model: resnet101, unet, amoebanetd, mlp, transformer, or "
              "exported for the file of --exported.");
DEFINE_string(exported, "", "With --model=exported: a file of //exported.");
DEFINE_string(cut, "",
              "With --model=exported: the Python modules at which partitions "
              "begin, separated by commas. --balance then counts the model's "
              "own layers.");
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
DEFINE_string(transfers, "auto",
              "With --processes on accelerators: auto, host or direct.");
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

bool is_exported() { return FLAGS_model == "exported"; }

PeerModel data_of_flags() {
  if (is_exported()) {
    return exported_peer_data(FLAGS_exported, FLAGS_batch, FLAGS_side,
                              FLAGS_seed);
  }
  return make_peer_model(FLAGS_model,
                         {FLAGS_batch, FLAGS_depth, FLAGS_width, FLAGS_side},
                         FLAGS_seed);
}

PeerModel model_of_flags() {
  PeerModel model = data_of_flags();
  if (is_exported()) model.model = load_exported(FLAGS_exported).layers;
  return model;
}

namespace {

std::vector<int64_t> balance_of_flags() {
  auto balance = parse_positive_list("balance", FLAGS_balance);
  if (!is_exported()) return balance;
  return balance_of_modules(FLAGS_exported, split_list(FLAGS_cut));
}

}  // namespace

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

int64_t layers_of(int64_t size) { return is_exported() ? FLAGS_depth : size; }

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

std::unique_ptr<AutocastScope> autocast_of_flags(const c10::Device& device) {
  if (FLAGS_amp.empty()) return nullptr;
  const std::vector<std::string> names{"bfloat16", "float16"};
  const at::ScalarType types[] = {at::kBFloat16, at::kHalf};
  return std::make_unique<AutocastScope>(
      device.type(), types[parse_choice("amp", FLAGS_amp, names)]);
}

}  // namespace gpipe::benchmarks
