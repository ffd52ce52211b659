#include "benchmarks/harness/notes.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "benchmarks/harness/experiment/mode.h"
#include "benchmarks/harness/report/figures.h"
#include "benchmarks/harness/report/outcome_table.h"

namespace gpipe::benchmarks {
namespace {

std::string sizes_note(const Benchmark& benchmark, const RunOptions& options) {
  const Workload& workload = options.workload(benchmark);
  std::string text =
      (options.small ? "Reduced: " : "As published: ") + workload.text + ".";
  const auto& rows = options.experiments;
  const bool equal =
      std::all_of(rows.begin(), rows.end(), [&](const Experiment& row) {
        return row.batch_size == rows.front().batch_size;
      });
  if (rows.size() > 1 && equal) {
    text += " The same mini-batch in every row.";
  } else if (!equal && options.rows.same_batch) {
    text += " Every row has the mini-batch of its base.";
  }
  return text;
}

std::string measured_note(const Benchmark& benchmark,
                          const RunOptions& options) {
  const std::string epochs = "epochs " +
                             std::to_string(options.skip_epochs + 1) + " to " +
                             std::to_string(options.epochs);
  if (benchmark.table_kind == TableKind::kMemory) {
    return "Measured over " + std::to_string(options.epochs) +
           " training steps: the peak memory of all tensors.";
  }
  return "Measured: median, smallest and largest of " + epochs + ", of " +
         std::to_string(options.samples) +
         " samples each, with all devices idle at start and end.";
}

void add_devices_notes(const RunOptions& options, bool tells_speed,
                       std::vector<std::string>* notes) {
  const auto& devices = options.settings.devices;
  if (options.world) {
    notes->push_back(
        "Each partition is a process with its own memory; memory is the sum "
        "over all processes.");
    return;
  }
  if (devices.front().is_cpu()) {
    notes->push_back(
        tells_speed
            ? "On CPUs: all partitions share the " +
                  std::to_string(at::get_num_threads()) +
                  " threads that the baseline has alone, so a speed-up of 1 "
                  "would be a pipeline without any cost. Recomputing adds "
                  "about a third of the work. All partitions share one memory."
            : "On CPUs: all partitions share one memory.");
    return;
  }
  const bool shared = std::any_of(
      devices.begin(), devices.end(), [&](const c10::Device& device) {
        return std::count(devices.begin(), devices.end(), device) > 1;
      });
  if (shared) {
    notes->push_back("Partitions share a device: " +
                     std::string(tells_speed
                                     ? "speeds do not show the gain of more "
                                       "devices, and "
                                     : "") +
                     "its memory is the sum over its partitions.");
  }
}

std::string seed_note(const Settings& settings) {
  return "Seed " + std::to_string(settings.seed) +
         (settings.deterministic ? ", deterministic kernels only." : ".");
}

// Returns true if the table shows a published figure; see outcome_table().
bool shows_published(const Benchmark& benchmark, bool speed) {
  return std::any_of(benchmark.published.begin(), benchmark.published.end(),
                     [speed](const PublishedColumn& column) {
                       return is_speed(column.figure) == speed;
                     });
}

}  // namespace

std::vector<std::string> notes_for(const Benchmark& benchmark,
                                   const RunOptions& options) {
  const bool speed = tells_speed(benchmark, options.mode);
  const Workload& workload = options.workload(benchmark);
  std::vector<std::string> notes{sizes_note(benchmark, options)};
  switch (options.mode) {
    case Mode::kMeasure:
      notes.push_back(measured_note(benchmark, options));
      add_devices_notes(options, speed, &notes);
      notes.push_back(seed_note(options.settings));
      break;
    case Mode::kSimulate:
      notes.emplace_back(
          "Simulated: one step with a device per partition, without the loss "
          "and the optimizer.");
      break;
    case Mode::kDryRun:
      notes.emplace_back(
          "Dry-run: one training step on tensors that have a shape but no "
          "memory, with a device per partition and one cell at a time. Bytes "
          "are those that tensors request on a CPU, with the workspaces of "
          "convolutions as with AVX-512. The workspaces of an accelerator's "
          "kernels, and the cache and rounding of its allocator, are not "
          "included.");
      break;
  }
  if (!speed) {
    notes.emplace_back(
        "Memory is the sum over all devices, except for \"largest device\". "
        "Model memory: parameters, gradients and the optimizer's state. Total "
        "memory: the peak of everything. Activations: the total memory without "
        "model memory and buffers.");
  }
  notes.insert(notes.end(), workload.notes.begin(), workload.notes.end());
  if (!shows_published(benchmark, speed)) return notes;
  if (options.small) {
    notes.emplace_back(
        "Published figures are of other machines and sizes: compare only the "
        "ratios.");
  }
  notes.insert(notes.end(), benchmark.notes.begin(), benchmark.notes.end());
  return notes;
}

}  // namespace gpipe::benchmarks
