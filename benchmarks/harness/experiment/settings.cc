#include "benchmarks/harness/experiment/settings.h"

#include <absl/strings/str_join.h>
#include <gflags/gflags.h>

#include "gpipe/base/devices.h"
#include "gpipe/base/text.h"
#include "gpipe/schedule/microbatches.h"

DEFINE_string(devices, "",
              "Devices of the partitions: numbers of accelerators (0,1,2), or "
              "cpu. '': every accelerator or, if there is none, the CPU.");
DEFINE_int64(batch_size, 0,
             "Samples per mini-batch, the same in every row. 0: the "
             "experiment's.");
DEFINE_int64(chunks, 0, "Micro-batches per mini-batch. 0: the experiment's.");
DEFINE_string(balance, "",
              "Layers per partition (3,4), or auto: cut by measured time. '': "
              "the experiment's.");
DEFINE_string(checkpoint, "",
              "The micro-batches to recompute: always, except_last or never. "
              "'': the experiment's.");
DEFINE_int64(epochs, 0, "Number of epochs. 0: the experiment's.");
DEFINE_uint64(seed, 0, "Seed of the weights, the data and their order.");
DEFINE_bool(deterministic, false,
            "Use only kernels that give the same bits each time (slower on "
            "GPUs). An operator without such a kernel is an error.");

namespace gpipe::benchmarks {
namespace {

std::optional<int64_t> unless_zero(const char* flag, int64_t value) {
  if (value < 0) {
    internal::refuse("--", flag, "=", value,
                     ": expected a number above 0, or 0 for the "
                     "experiment's");
  }
  return value > 0 ? std::optional<int64_t>(value) : std::nullopt;
}

}  // namespace

Settings parse_settings() {
  Settings settings;
  settings.devices = parse_devices(FLAGS_devices);
  if (settings.devices.empty()) settings.devices = all_devices();
  settings.batch_size = unless_zero("batch_size", FLAGS_batch_size);
  settings.chunks = unless_zero("chunks", FLAGS_chunks);
  settings.balance_by_time = FLAGS_balance == "auto";
  if (!settings.balance_by_time) {
    settings.balance = parse_positive_list("balance", FLAGS_balance);
  }
  if (!FLAGS_checkpoint.empty()) {
    settings.checkpoint = parse_checkpoint(FLAGS_checkpoint);
  }
  settings.epochs = unless_zero("epochs", FLAGS_epochs);
  settings.seed = FLAGS_seed;
  settings.deterministic = FLAGS_deterministic;
  return settings;
}

void check_layers(const Settings& settings, int64_t layers) {
  int64_t left = layers;
  for (const int64_t entry : settings.balance) {
    // Subtracts instead of adding, since a sum of large entries could overflow.
    left -= entry;
    if (left < 0) break;
  }
  if (settings.balance.empty() || left == 0) return;
  internal::refuse("--balance=", absl::StrJoin(settings.balance, ","),
                   ": the model has ", layers,
                   " layers, and the numbers must add up to that");
}

void use_kernels(const Settings& settings) {
  if (settings.deterministic) use_deterministic_kernels();
}

Experiment apply(const Settings& settings, Experiment experiment) {
  experiment.batch_size = settings.batch_size.value_or(experiment.batch_size);
  if (experiment.partitions == 0) return experiment;
  experiment.chunks = settings.chunks.value_or(experiment.chunks);
  experiment.checkpoint = settings.checkpoint.value_or(experiment.checkpoint);
  if (settings.balance_by_time) experiment.balance.clear();
  if (static_cast<int64_t>(settings.balance.size()) == experiment.partitions) {
    experiment.balance = settings.balance;
  }
  return experiment;
}

}  // namespace gpipe::benchmarks
