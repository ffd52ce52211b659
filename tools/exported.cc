// Shows what is in a file of Python's torch.export.save: inputs, outputs,
// weights, layers, what crosses between them, and why it cannot run if it
// cannot.
//
//   ./bazelw run //tools:exported -- --in=/a/model.pt2
//   ./bazelw run //tools:exported -- --in=/a/model.pt2 --max_crossing=2
//
// With --compare it runs a training step instead, and compares the results with
// those that tools/export_examples.py wrote beside the model.
//
//   ./bazelw run //tools:exported -- --in=/a/gpt2.pt2 --compare=/a/gpt2.pt
//
// With --partitions it prints the memory that training takes on each device.
//
//   ./bazelw run //tools:exported -- --in=/a/llama.pt2 --partitions=16
//   --batch=64
//   ./bazelw run //tools:exported -- --in=/a/llama.pt2 --partitions=8
//   --batch=8 --lora_rank=8 --memory_gib=24
#include <c10/util/Exception.h>
#include <gflags/gflags.h>

#include <cstdint>
#include <exception>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/base/program.h"
#include "gpipe/base/run_main.h"
#include "gpipe/base/text.h"
#include "gpipe/schedule/microbatches.h"
#include "models/exported/analysis.h"
#include "models/exported/archive.h"
#include "models/exported/cuts.h"
#include "models/exported/plan.h"
#include "models/exported/program.h"
#include "models/exported/program_reader.h"
#include "models/weights/formats.h"
#include "tools/exported_runs.h"

DEFINE_string(in, "", "The file to read, as torch.export.save writes it.");
DEFINE_string(operators, "",
              "Libraries that register operators with LibTorch, separated by "
              "commas, for files with operators of their own.");
DEFINE_int64(max_crossing, 4,
             "The largest number of tensors that may cross between layers, as "
             "in ExportedOptions.");
DEFINE_string(compare, "",
              "A file of tools/export_examples.py with Python's outputs and "
              "gradients. They are compared with those of the program in one "
              "piece, and in micro-batches with 2 and 4 partitions.");
DEFINE_string(weights, "",
              "With --compare: a folder of transformers with the weights to "
              "use instead of those in the file.");
DEFINE_double(tolerance, 1e-4,
              "With --compare: the largest difference that is no failure, "
              "relative to the largest element of a tensor.");
DEFINE_bool(all_settings, false,
            "With --compare: try 2, 3 and 4 partitions, fill-drain, 1F1B and "
            "ZB-H1, without and with recomputing.");
DEFINE_int64(partitions, 0,
             "Run a training step on this number of devices without memory, "
             "and print the memory of each. 0: do not.");
DEFINE_int64(batch, 8, "With --partitions: rows of the mini-batch.");
DEFINE_int64(chunks, 0,
             "With --partitions: number of micro-batches. 0: one per row.");
DEFINE_int64(other_sizes, 0,
             "With --partitions: the size of each dimension of an input that "
             "varies, except dimension 0.");
DEFINE_string(checkpoint, "except_last",
              "With --partitions: the micro-batches to recompute: always, "
              "except_last or never.");
DEFINE_double(param_scale, 4,
              "With --partitions: bytes per byte of parameters: 2 for SGD, 3 "
              "with momentum, 4 for Adam.");

DEFINE_int64(lora_rank, 0,
             "With --partitions: train adapters of this rank, and freeze the "
             "weights. 0: train the weights.");
DEFINE_string(lora_targets, "q_proj,v_proj",
              "With --lora_rank: the linear modules that get adapters: last "
              "parts of their names, separated by commas.");
DEFINE_double(memory_gib, 0,
              "With --partitions: the memory of each device, in GiB. Ends with "
              "status 1 if one has too little. 0: not known.");

namespace gpipe::exported {
namespace {

using Table = std::vector<std::vector<std::string>>;

void print_values(const Program& program, const char* title,
                  const std::vector<ValueId>& values) {
  std::cout << title << "\n";
  for (std::size_t k = 0; k < values.size(); ++k) {
    std::cout << "  " << k << "  " << program.values[values[k]].name << "  "
              << shape_text(program, values[k]) << "\n";
  }
}

void print_ranges(const Program& program) {
  for (int k = 0; k < program.symbols.size(); ++k) {
    const Range& range = program.symbols.range(k);
    if (range.most == std::numeric_limits<int64_t>::max()) continue;
    std::cout << "  " << program.symbols.name(k) << ": " << range.least
              << " to " << range.most << "\n";
  }
}

double bytes_of(const Weight& weight) {
  double bytes = static_cast<double>(c10::elementSize(weight.dtype));
  for (const int64_t each : weight.sizes) bytes *= static_cast<double>(each);
  return bytes;
}

void print_weights(const Program& program) {
  int64_t parameters = 0, buffers = 0, tied = 0;
  double bytes = 0;
  for (std::size_t k = 0; k < program.weights.size(); ++k) {
    const Weight& weight = program.weights[k];
    if (weight.tied_to != static_cast<int>(k)) {
      ++tied;
      continue;
    }
    ++(weight.is_parameter ? parameters : buffers);
    bytes += bytes_of(weight);
  }
  std::cout << "weights\n  " << parameters << " parameters, " << buffers
            << " buffers and constants, " << bytes_text(bytes) << "; " << tied
            << " further names of tied weights\n";
}

void print_layers(const Program& program) {
  const auto plans = plan_layers(program, FLAGS_max_crossing);
  std::vector<std::string> paths;
  for (const LayerPlan& each : plans) {
    paths.push_back(layer_path(program, each));
  }
  const auto names = layer_names(paths);
  Table table = {{"layer", "name", "nodes", "weights", "in", "popped"}};
  for (std::size_t k = 0; k < plans.size(); ++k) {
    double bytes = 0;
    for (const ValueId each : plans[k].weights) {
      bytes += bytes_of(program.weights[program.values[each].weight]);
    }
    table.push_back({std::to_string(k), names[k],
                     std::to_string(plans[k].nodes.size()), bytes_text(bytes),
                     std::to_string(plans[k].inputs.size()),
                     std::to_string(plans[k].pops.size())});
  }
  std::cout << "layers, with the tensors that come in from the layer before "
               "and as skip tensors\n";
  std::cout << columns_text(table, "rlr");
  if (const auto reason = uncut_reason(program, FLAGS_max_crossing);
      !reason.empty()) {
    std::cout << "there is one layer only, because " << reason << "\n";
  }
}

// Prints how many places there are for each number of crossing tensors.
void print_crossings(const Program& program) {
  std::map<int, int> places;
  for (const int each : crossings(program)) ++places[each];
  std::cout << "places to cut, by the tensors that cross\n";
  for (const auto& [count, number] : places) {
    if (count != kNoCut) {
      std::cout << "  " << count << ": " << number << "\n";
    }
  }
  std::cout << "  none: " << places[kNoCut] << "\n";
}

void print_eval_problems(const Program& program) {
  const std::vector<std::string> problems = eval_problems(program);
  if (problems.empty()) return;
  std::cout << "eval() throws, because\n";
  for (const std::string& each : problems) std::cout << "  " << each << "\n";
}

int show(const std::string& path) {
  const Program program =
      internal::with_prefix<c10::Error>("'" + path + "' ", [&] {
        Archive archive(path);
        Program read = read_program(archive, {});
        analyze(read, /*keep_random=*/true);
        return read;
      });
  std::cout << path << ", PyTorch " << program.torch_version << ", "
            << program.nodes.size() << " nodes\n";
  print_values(program, "inputs", program.inputs);
  print_ranges(program);
  print_values(program, "outputs", program.outputs);
  print_weights(program);
  if (!program.problems.empty()) {
    std::cout << "cannot run, because\n";
    for (const auto& each : program.problems) std::cout << "  " << each << "\n";
    return 1;
  }
  print_crossings(program);
  print_layers(program);
  print_eval_problems(program);
  return 0;
}

// Throws if a flag was given that belongs to another one.
void check_flags() {
  const std::vector<const char*> of_compare = {"weights", "tolerance",
                                               "all_settings"};
  const std::vector<const char*> of_partitions = {
      "batch",       "chunks",    "other_sizes", "checkpoint",
      "param_scale", "lora_rank", "memory_gib"};
  if (FLAGS_compare.empty()) {
    check_unused(of_compare, "has no meaning without --compare");
  } else {
    check_unused({"partitions"}, "has no meaning with --compare");
  }
  if (FLAGS_partitions == 0) {
    check_unused(of_partitions, "has no meaning without --partitions");
  }
  if (FLAGS_lora_rank == 0) {
    check_unused({"lora_targets"}, "has no meaning without --lora_rank");
  }
}

}  // namespace
}  // namespace gpipe::exported

int main(int argc, char** argv) {
  try {
    gpipe::begin_program();
    if (!gpipe::read_flags(
            &argc, &argv,
            "Shows inputs, outputs, weights and layers of an exported program. "
            "Ends with status 1 if the program cannot run as a pipeline, or "
            "if it differs from --compare.",
            "tools/exported")) {
      return 0;
    }
    TORCH_CHECK_VALUE(!FLAGS_in.empty(), "give a file to read with --in");
    TORCH_CHECK_VALUE(FLAGS_max_crossing >= 0,
                      "--max_crossing=", FLAGS_max_crossing,
                      ": must be at least 0");
    gpipe::exported::check_flags();
    gpipe::load_operators(FLAGS_operators);
    if (!FLAGS_compare.empty()) {
      return gpipe::tools::compare_exported(
                 FLAGS_in, FLAGS_compare, FLAGS_max_crossing, FLAGS_tolerance,
                 FLAGS_all_settings, std::cout, FLAGS_weights)
                 ? 0
                 : 1;
    }
    if (FLAGS_partitions != 0) {
      std::optional<gpipe::LoraOptions> lora;
      if (FLAGS_lora_rank != 0) {
        lora = gpipe::LoraOptions()
                   .rank(FLAGS_lora_rank)
                   .targets(gpipe::split_list(FLAGS_lora_targets));
      }
      return gpipe::tools::measure_exported(
                 FLAGS_in,
                 {FLAGS_partitions, FLAGS_batch, FLAGS_chunks,
                  FLAGS_max_crossing, FLAGS_other_sizes,
                  gpipe::parse_checkpoint(FLAGS_checkpoint), FLAGS_param_scale,
                  lora, FLAGS_memory_gib},
                 std::cout)
                 ? 0
                 : 1;
    }
    return gpipe::exported::show(FLAGS_in);
  } catch (const std::exception& error) {
    std::cerr << "exported: " << gpipe::error_text(error) << "\n";
  }
  return 1;
}
