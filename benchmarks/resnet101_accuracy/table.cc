#include "benchmarks/resnet101_accuracy/table.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <glog/logging.h>

#include <csignal>
#include <map>
#include <stdexcept>

#include "benchmarks/harness/experiment/statistics.h"
#include "training/data/checksum.h"
#include "training/program/run.h"

namespace gpipe::benchmarks {
namespace {

using train_program::Evaluation;
using train_program::Score;

uint32_t state_checksum(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : module.named_parameters()) {
    tensors[item.key()] = item.value();
  }
  for (const auto& item : module.named_buffers()) {
    tensors[item.key()] = item.value();
  }
  uint32_t sum = 0;
  for (const auto& [name, tensor] : tensors) {
    sum = data::checksum_of(tensor, data::checksum_of(name, sum));
  }
  return sum;
}

// Adds the mean loss and the top-1 error in percent.
void add_score(const Score& score, Row& row) {
  row.cells.emplace_back(score.loss / score.items, 6);
  row.cells.emplace_back(100 * (score.items - score.value) / score.items, 2);
}

void add_settings(const AccuracyOutcome& outcome, Row& row) {
  const train_program::Options& options = outcome.options;
  const std::string balance = outcome.balance.empty()
                                  ? options.balance
                                  : absl::StrJoin(outcome.balance, ",");
  row.cells = {options.batch,      options.chunks, balance,
               options.checkpoint, options.epochs, Cell(options.lr, 5)};
}

void add_result(const AccuracyOutcome& outcome, Row& row) {
  std::vector<double> speeds;
  for (const Evaluation& epoch : outcome.epochs) {
    row.durations.push_back({epoch.seconds, epoch.cpu_seconds});
    speeds.push_back(epoch.train.items / epoch.seconds);
  }
  if (speeds.size() > 1) speeds.erase(speeds.begin());
  add_score(outcome.epochs.back().train, row);
  add_score(outcome.epochs.back().test, row);
  row.cells.emplace_back(median(speeds), 2);
  row.cells.emplace_back(absl::StrFormat("%08x", outcome.checksum));
}

}  // namespace

void train_row(train_program::Task& task, AccuracyOutcome& outcome) {
  const train_program::Options& options = outcome.options;
  const int code = train_program::run(
      options, task,
      [&](const std::string& line) {
        LOG(INFO) << outcome.row.experiment.name << " | " << line;
      },
      [&](const Evaluation& evaluation, PipelineModule& pipeline) {
        outcome.epochs.push_back(evaluation);
        outcome.balance = pipeline.balance();
        outcome.checksum = state_checksum(pipeline);
      });
  if (code > train_program::kSignal) std::raise(code - train_program::kSignal);
  if (code != train_program::kDone) {
    throw std::runtime_error("the loss or a gradient is not finite in epoch " +
                             std::to_string(outcome.epochs.size() + 1) +
                             " (see the log); try a smaller --lr");
  }
}

Table accuracy_rows_table(const std::vector<AccuracyOutcome>& outcomes) {
  Table table;
  table.title = "ResNet-101, accuracy";
  table.columns = {"batch",         "chunks",
                   "balance",       "checkpoint",
                   "epochs",        "learning rate",
                   "training loss", "training error %",
                   "test loss",     "test top-1 error %",
                   "samples/s",     "checksum"};
  const std::size_t own = table.columns.size();
  for (const auto& name : accuracy_columns()) table.columns.push_back(name);
  table.columns.emplace_back("published on devices");
  for (const AccuracyOutcome& outcome : outcomes) {
    Row& row = table.rows.emplace_back();
    row.name = outcome.row.experiment.name;
    row.error = outcome.error;
    if (outcome.row.left_out.empty()) add_settings(outcome, row);
    if (!outcome.epochs.empty()) add_result(outcome, row);
    row.cells.resize(own);
    const auto& published = outcome.row.experiment.published;
    row.cells.emplace_back(published.at(0), 2);
    row.cells.emplace_back(published.at(1), 2);
    row.cells.emplace_back(published.at(2), 3);
    row.cells.emplace_back(published.at(3), 3);
    if (outcome.row.devices) row.cells.emplace_back(*outcome.row.devices);
  }
  table.notes = {
      "Errors are those of the last epoch. Samples/s: the median over the "
      "epochs, without the first one if there are several.",
      "Published: torchgpipe's figures after 90 epochs on ImageNet, means of "
      "several runs on Tesla P40, with speed-ups relative to dataparallel-256; "
      "its dataparallel-4k ran out of memory. reference-*: Goyal et al., from "
      "torchgpipe's table. amoebanet-b-*: GPipe's table 4, AmoebaNet-B (18, "
      "512) on images of 480x480."};
  return table;
}

}  // namespace gpipe::benchmarks
