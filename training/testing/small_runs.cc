#include "training/testing/small_runs.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cstddef>
#include <fstream>
#include <sstream>

#include "models/weights/state_dict.h"
#include "training/program/run.h"
#include "training/program/task.h"
#include "training/run_files.h"

namespace gpipe::train_program {

Options small_options(const std::string& model) {
  Options options;
  options.model = model;
  options.batch = 8;
  options.size = 32;
  options.sizes["amoebanetd"] = {.layers = 3, .width = 8};
  options.sizes["unet"] = {.depth = 1, .convolutions = 1, .width = 4};
  options.sizes["transformer"] = {.layers = 2, .width = 16, .heads = 2};
  options.length = 12;
  options.balance = "size";
  options.chunks = 2;
  options.devices = "cpu,cpu";
  options.threads = 1;
  options.eval_every = -1;
  options.save_every = 0;
  return options;
}

Options planned_options(const std::string& model, const std::string& plan) {
  Options options = small_options(model);
  options.balance = Options().balance;
  options.chunks = Options().chunks;
  options.plan = plan;
  return options;
}

std::string Ran::line_with(const std::string& part) const {
  for (const std::string& line : lines) {
    if (line.find(part) != std::string::npos) return line;
  }
  return "";
}

Ran run_here(const Options& options) {
  const auto task = make_task(options);
  return run_here(options, *task);
}

Ran run_here(const Options& options, Task& task) {
  Ran ran;
  ran.code = run(options, task,
                 [&](const std::string& line) { ran.lines.push_back(line); });
  return ran;
}

RunState state_in(const std::string& folder) {
  return RunFiles(folder).load_latest().value();
}

Score plain_score(const std::string& folder, Task& task,
                  torch::nn::Sequential model) {
  load_state_dict(*model, state_in(folder).model);
  model->eval();
  const torch::NoGradGuard no_grad;
  Score score;
  for (int64_t k = 0; k < task.test_batches(); ++k) {
    const Sample sample = task.test_batch(k);
    score += task.score(sample.with_input([&](const auto& input) {
      return model->forward(input);
    }),
                        sample.target);
  }
  return score;
}

std::string logged(const std::string& folder, int64_t step,
                   const std::string& column) {
  std::ifstream log(folder + "/metrics.csv");
  const auto field = [](const std::string& line, std::size_t wanted) {
    std::istringstream fields(line + ",");
    std::string text;
    for (std::size_t k = 0; k <= wanted; ++k) std::getline(fields, text, ',');
    return text;
  };
  std::string header, line;
  std::getline(log, header);
  std::size_t wanted = 0;
  while (field(header, wanted) != column) {
    if (++wanted > header.size()) return "";
  }
  while (std::getline(log, line)) {
    if (field(line, 0) == std::to_string(step)) return field(line, wanted);
  }
  return "";
}

}  // namespace gpipe::train_program
