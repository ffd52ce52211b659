#include "benchmarks/resnet101_accuracy/table.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "benchmarks/harness/statistics.h"
#include "benchmarks/resnet101_accuracy/rows.h"
#include "gpipe/text/format.h"
#include "gpipe/text/lists.h"

namespace gpipe::benchmarks {
namespace {

constexpr char kReduced[] =
    "Reduced: small images, an eighth of each published mini-batch, a "
    "hundredth of each learning rate. The published figures are of ImageNet: "
    "compare them only with each other.";

std::string hexadecimal(uint64_t value) { return format("%016lx", value); }

// Returns a learning rate with as many decimals as the papers give.
Cell rate_cell(double rate) { return {rate, 5}; }

Cell unless_zero(int64_t number) { return number == 0 ? Cell() : Cell(number); }

Cell devices_cell(const std::optional<int64_t>& devices) {
  return devices ? Cell(*devices) : Cell();
}

const std::vector<std::string>& plan_columns() {
  static const auto* const columns = new std::vector<std::string>{
      "batch", "chunks", "balance", "checkpoint", "epochs", "learning rate"};
  return *columns;
}

// Returns the cells for plan_columns(). Chunks, balance and checkpoint mode are
// empty for the plain model.
std::vector<Cell> plan_cells(const AccuracyPlan& plan,
                             const std::vector<int64_t>& balance) {
  const Experiment& experiment = plan.experiment;
  std::vector<Cell> cells(plan_columns().size());
  cells[0] = unless_zero(experiment.batch_size);
  if (experiment.partitions > 0) {
    cells[1] = experiment.chunks;
    if (!balance.empty()) cells[2] = join(balance);
    cells[3] = to_string(experiment.checkpoint);
  }
  cells[4] = unless_zero(plan.options.epochs);
  if (plan.rate.base > 0) cells[5] = rate_cell(plan.rate.base);
  return cells;
}

std::vector<double> speeds_after_first(const AccuracyResult& result) {
  std::vector<double> speeds;
  for (const EpochResult& epoch : result.epochs) {
    speeds.push_back(epoch.samples_per_second());
  }
  if (speeds.size() > 1) speeds.erase(speeds.begin());
  return speeds;
}

// Adds torchgpipe's rows that have a result: the error after the last epoch,
// and the speed.
void add_torchgpipe_epochs(Table* table) {
  for (const AccuracyRow& row : accuracy_table(/*small=*/false).rows) {
    const auto& published = row.experiment.published;
    if (!published.at(2)) continue;
    Row& added = table->rows.emplace_back();
    added.name = "torchgpipe " + row.experiment.name;
    added.cells = {rate_cell(row.rate.value()),
                   Cell(),
                   Cell(),
                   Cell(),
                   Cell(published.at(0), 2),
                   Cell(published.at(2), 2)};
  }
}

}  // namespace

Table accuracy_plan_table(const AccuracyOptions& options) {
  Table table;
  table.title = "ResNet-101, accuracy (the plan; nothing was run)";
  table.columns = {"partitions"};
  for (const auto& name : plan_columns()) table.columns.push_back(name);
  for (const char* name :
       {"warm-up epochs", "warm-up from", "a tenth after", "image size"}) {
    table.columns.emplace_back(name);
  }
  for (const AccuracyPlan& plan : options.plans) {
    Row& row = table.rows.emplace_back();
    row.name = plan.experiment.name;
    row.error = plan.left_out;
    // A row that is left out has no epochs, only the values of the paper.
    row.cells = {plan.options.epochs > 0 ? Cell(plan.experiment.partitions)
                                         : Cell()};
    for (auto& cell : plan_cells(plan, plan.experiment.balance)) {
      row.cells.push_back(std::move(cell));
    }
    if (plan.options.epochs == 0) continue;
    row.cells.emplace_back(plan.rate.warmup_epochs, 1);
    row.cells.push_back(rate_cell(plan.rate.warmup_from));
    row.cells.emplace_back(join(plan.rate.milestones));
    row.cells.emplace_back(plan.options.size);
  }
  table.notes = {options.data_dir.empty()
                     ? "On generated shapes: there is no --data_dir."
                     : "On the images of --data_dir."};
  if (options.small) table.notes.emplace_back(kReduced);
  return table;
}

Table epochs_table(const AccuracyOutcome& outcome, bool published) {
  const Experiment& experiment = outcome.plan.experiment;
  const AccuracyResult& result = outcome.result;
  Table table;
  table.title = "ResNet-101, accuracy through a pipeline of " +
                std::to_string(experiment.partitions) + " partitions";
  table.name_column = "epoch";
  table.columns = {"learning rate", "training loss",      "training error %",
                   "test loss",     "test top-1 error %", "samples/s",
                   "seconds"};
  for (const EpochResult& epoch : result.epochs) {
    Row& row = table.rows.emplace_back();
    row.name = std::to_string(table.rows.size());
    row.cells = {rate_cell(epoch.rate),
                 Cell(mean_loss(epoch.train), 6),
                 Cell(error_percent(epoch.train), 2),
                 Cell(mean_loss(epoch.test), 6),
                 Cell(error_percent(epoch.test), 2),
                 Cell(epoch.samples_per_second(), 2),
                 Cell(epoch.duration.wall_seconds, 2)};
    row.durations = {epoch.duration};
  }
  table.notes = {
      "Batch " + std::to_string(experiment.batch_size) + ", chunks " +
          std::to_string(experiment.chunks) + ", balance [" +
          join(result.balance) + "], checkpoint " +
          to_string(experiment.checkpoint) + ", seed " +
          std::to_string(outcome.plan.options.seed) + ".",
      "The learning rate is that at the start of an epoch. The training error "
      "is that of the augmented images, while the weights change.",
      "Checksum of parameters and buffers: " + hexadecimal(result.checksum)};
  if (!published) return table;
  add_torchgpipe_epochs(&table);
  table.notes.emplace_back(
      "torchgpipe's rows are of ImageNet after 90 epochs, means of several "
      "runs, on 2 (256) and 8 Tesla P40; their learning rate is that after "
      "the warm-up.");
  return table;
}

Table accuracy_rows_table(const AccuracyOptions& options,
                          const std::vector<AccuracyOutcome>& outcomes) {
  Table table;
  table.title = "ResNet-101, accuracy";
  table.columns = plan_columns();
  for (const char* name : {"training loss", "training error %", "test loss",
                           "test top-1 error %", "samples/s", "checksum"}) {
    table.columns.emplace_back(name);
  }
  if (options.published) {
    for (const auto& name : accuracy_columns()) table.columns.push_back(name);
    table.columns.emplace_back("published on devices");
  }
  for (const AccuracyOutcome& outcome : outcomes) {
    const AccuracyResult& result = outcome.result;
    Row& row = table.rows.emplace_back();
    row.name = outcome.plan.experiment.name;
    row.error = outcome.error;
    row.cells = plan_cells(outcome.plan, result.balance);
    if (result.epochs.empty()) {
      row.cells.resize(row.cells.size() + 6);
    } else {
      const EpochResult& last = result.epochs.back();
      row.cells.emplace_back(mean_loss(last.train), 6);
      row.cells.emplace_back(error_percent(last.train), 2);
      row.cells.emplace_back(mean_loss(last.test), 6);
      row.cells.emplace_back(error_percent(last.test), 2);
      row.cells.emplace_back(median(speeds_after_first(result)), 2);
      row.cells.emplace_back(hexadecimal(result.checksum));
      for (const EpochResult& epoch : result.epochs) {
        row.durations.push_back(epoch.duration);
      }
    }
    if (!options.published) continue;
    const auto& published = outcome.plan.experiment.published;
    row.cells.emplace_back(published.at(0), 2);
    row.cells.emplace_back(published.at(1), 2);
    row.cells.emplace_back(published.at(2), 3);
    row.cells.emplace_back(published.at(3), 3);
    row.cells.push_back(devices_cell(outcome.plan.published_devices));
  }
  table.notes = {
      "Errors are those of the last epoch. Samples/s: the median over the "
      "epochs, without the first one if there are several.",
      "Seed " + std::to_string(options.settings.seed) + "."};
  if (options.small) table.notes.emplace_back(kReduced);
  if (options.published) {
    table.notes.emplace_back(
        "Published: torchgpipe's figures after 90 epochs on ImageNet, means of "
        "several runs on Tesla P40, with speed-ups relative to "
        "dataparallel-256; its dataparallel-4k ran out of memory. reference-*: "
        "Goyal et al., from torchgpipe's table. amoebanet-b-*: GPipe's table "
        "4, AmoebaNet-B (18, 512) on images of 480x480.");
  }
  return table;
}

}  // namespace gpipe::benchmarks
