#include "benchmarks/tables.h"

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/accuracy.h"
#include "benchmarks/harness/experiment.h"
#include "benchmarks/timeline.h"
#include "gpipe/meta.h"
#include "models/resnet.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> names_of(const std::vector<Experiment>& rows) {
  std::vector<std::string> names;
  for (const Experiment& row : rows) names.push_back(row.name);
  return names;
}

const Experiment& find(const std::vector<Experiment>& rows,
                       const std::string& name) {
  for (const Experiment& row : rows) {
    if (row.name == name) return row;
  }
  throw std::invalid_argument("there is no row " + name);
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

void expect_names_of_their_own(const std::vector<Experiment>& rows) {
  std::map<std::string, int> counts;
  for (const Experiment& row : rows) ++counts[row.name];
  for (const auto& [name, count] : counts) {
    EXPECT_EQ(count, 1) << "'" << name << "'";
    EXPECT_NE(name, "");
    EXPECT_NE(name, "all");  // a value of --experiment
  }
}

// Returns true if no row has a balance, so that all are cut by time.
bool cut_by_time(const std::vector<Experiment>& rows) {
  for (const Experiment& row : rows) {
    if (row.partitions > 0 && !row.balance.empty()) return false;
  }
  return true;
}

void expect_balance_of(const Experiment& row, int64_t layers) {
  if (row.partitions == 0) {
    EXPECT_THAT(row.balance, IsEmpty());
    return;
  }
  EXPECT_THAT(row.balance, SizeIs(row.partitions));
  EXPECT_THAT(row.balance, Each(::testing::Gt(0)));
  EXPECT_EQ(sum(row.balance), layers);
}

// The models of a benchmark on the meta device. It makes one model per size,
// since making a Transformer-1663 takes time.
class Models {
 public:
  explicit Models(const Benchmark& benchmark) : benchmark_(benchmark) {}

  int64_t layers(const Experiment& row) {
    return static_cast<int64_t>(model(row)->size());
  }
  int64_t parameters(const Experiment& row) {
    int64_t count = 0;
    for (const at::Tensor& tensor : model(row)->parameters()) {
      count += tensor.numel();
    }
    return count;
  }

 private:
  torch::nn::Sequential model(const Experiment& row) {
    const auto found = models_.find(row.size);
    if (found != models_.end()) return found->second;
    const MetaGuard meta;
    return models_.emplace(row.size, benchmark_.model(row)).first->second;
  }

  const Benchmark& benchmark_;
  std::map<std::vector<int64_t>, torch::nn::Sequential> models_;
};

class TablesTest : public ::testing::TestWithParam<Benchmark (*)()> {
 protected:
  const Benchmark benchmark_ = GetParam()();
  const std::vector<const Workload*> sizes_{&benchmark_.paper,
                                            &benchmark_.small};
};

TEST_P(TablesTest, RowsHaveNamesOfTheirOwnTheSameAtBothSizes) {
  expect_names_of_their_own(benchmark_.paper.experiments);
  EXPECT_EQ(names_of(benchmark_.small.experiments),
            names_of(benchmark_.paper.experiments));
}

TEST_P(TablesTest, RowsOfThePaperSayHowTheWholeModelIsCut) {
  Models models(benchmark_);
  for (const Experiment& row : benchmark_.paper.experiments) {
    SCOPED_TRACE(row.name);
    expect_balance_of(row, models.layers(row));
  }
}

// All rows of a table must be cut in the same way, so that they can be
// compared.
TEST_P(TablesTest, SmallRowsAreAllCutByTimeOrAllSayHow) {
  Models models(benchmark_);
  const auto& rows = benchmark_.small.experiments;
  const bool by_time = cut_by_time(rows);
  for (const Experiment& row : rows) {
    SCOPED_TRACE(row.name);
    if (by_time) {
      EXPECT_GE(models.layers(row), row.partitions);
    } else {
      expect_balance_of(row, models.layers(row));
    }
  }
}

TEST_P(TablesTest, RowsHaveAFigureForEachPublishedColumn) {
  for (const Workload* size : sizes_) {
    for (const Experiment& row : size->experiments) {
      EXPECT_THAT(row.published, SizeIs(benchmark_.published.size()))
          << row.name;
    }
  }
}

TEST_P(TablesTest, RowsHaveMiniBatchesOfAnEpochAtMost) {
  for (const Workload* size : sizes_) {
    for (const Experiment& row : size->experiments) {
      EXPECT_GE(row.batch_size, 1) << row.name;
      EXPECT_GE(row.chunks, 1) << row.name;
      if (benchmark_.table_kind == TableKind::kMemory) continue;
      EXPECT_LE(row.batch_size, size->samples_per_epoch) << row.name;
    }
    EXPECT_GT(size->epochs, size->skip_epochs);
  }
}

// Finds typing errors in published speeds and speed-ups. The papers give at
// most three decimals.
TEST_P(TablesTest, PublishedSpeedUpsAreThoseOfThePublishedSpeeds) {
  const auto& rows = benchmark_.paper.experiments;
  std::optional<size_t> speed;
  for (size_t i = 0; i < benchmark_.published.size(); ++i) {
    const auto& column = benchmark_.published[i];
    if (column.figure == Figure::kSpeed) speed = i;
    if (column.figure != Figure::kSpeedUp) continue;
    for (const Experiment& row : rows) {
      SCOPED_TRACE(row.name + ", " + column.name);
      const std::string base = row.base.empty() ? benchmark_.base : row.base;
      const Experiment& one = find(rows, base);
      EXPECT_EQ(one.published.at(i).value_or(1), 1);
      if (column.name.rfind("GPipe", 0) == 0) continue;  // publishes no speeds
      ASSERT_TRUE(speed);
      const auto& of_row = row.published.at(*speed);
      EXPECT_EQ(of_row.has_value(), row.published.at(i).has_value());
      if (!of_row) continue;
      EXPECT_NEAR(*of_row / one.published.at(*speed).value(),
                  *row.published.at(i), 0.0005 + 1e-9);
    }
  }
}

// The papers round to two digits or more: GPipe rounds 1.845 billion to 1.8.
TEST_P(TablesTest, ModelsHaveThePublishedNumberOfParameters) {
  Models models(benchmark_);
  for (size_t i = 0; i < benchmark_.published.size(); ++i) {
    if (benchmark_.published[i].figure != Figure::kParameters) continue;
    for (const Experiment& row : benchmark_.paper.experiments) {
      const auto published = row.published.at(i).value();
      EXPECT_NEAR(static_cast<double>(models.parameters(row)) / published, 1,
                  0.025)
          << row.name << ", " << benchmark_.published[i].name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TablesTest,
    ::testing::Values(&amoebanetd_memory_benchmark, &amoebanetd_speed_benchmark,
                      &resnet101_speed_benchmark, &timeline_benchmark,
                      &transformer_memory_benchmark,
                      &transformer_speed_benchmark, &unet_memory_benchmark,
                      &unet_speed_benchmark),
    [](const auto& of) { return of.param().program.name; });

TEST(Resnet101SpeedBenchmark, AreTorchgpipesAndGPipesFigures) {
  const auto rows = resnet101_speed_benchmark().paper.experiments;
  EXPECT_THAT(names_of(rows),
              ElementsAre("baseline", "pipeline-1", "pipeline-2", "pipeline-4",
                          "pipeline-8"));
  const Experiment& row = find(rows, "pipeline-8");
  EXPECT_EQ(row.batch_size, 5400);
  EXPECT_EQ(row.chunks, 150);
  EXPECT_THAT(row.balance, ElementsAre(26, 22, 33, 44, 44, 66, 66, 69));
  EXPECT_THAT(row.published, ElementsAre(411.662, 4.294, 2.891));
}

TEST(UnetSpeedBenchmark, AreTorchgpipesFigures) {
  const auto rows = unet_speed_benchmark().paper.experiments;
  EXPECT_THAT(find(rows, "baseline").published, ElementsAre(28.5, 1));
  const Experiment& row = find(rows, "pipeline-4");
  EXPECT_EQ(row.batch_size, 512);
  EXPECT_EQ(row.chunks, 16);
  EXPECT_THAT(row.published, ElementsAre(67.042, 2.352));
}

TEST(UnetMemoryBenchmark, AreTorchgpipesFiguresInBytes) {
  const auto rows = unet_memory_benchmark().paper.experiments;
  EXPECT_THAT(find(rows, "baseline").published,
              ElementsAre(362.2e6, 20.3 * 1073741824));
  const Experiment& row = find(rows, "pipeline-8");
  EXPECT_THAT(row.size, ElementsAre(48, 160));
  EXPECT_EQ(row.chunks, 128);
  EXPECT_EQ(row.checkpoint, Checkpoint::kAlways);
  EXPECT_THAT(row.published, ElementsAre(15820e6, 154.1 * 1073741824));
  EXPECT_EQ(find(rows, "pipeline-4").checkpoint, Checkpoint::kExceptLast);
}

TEST(AmoebaNetSpeedBenchmark, AreTorchgpipesAndGPipesFigures) {
  const auto rows = amoebanetd_speed_benchmark().paper.experiments;
  EXPECT_THAT(
      names_of(rows),
      ElementsAre("n2m1", "n2m4", "n2m32", "n4m1", "n4m4", "n4m32", "n8m1",
                  "n8m4", "n8m32", "p100-n2", "p100-n4", "p100-n8"));
  EXPECT_EQ(find(rows, "n8m1").checkpoint, Checkpoint::kAlways);
  const Experiment& row = find(rows, "n8m32");
  EXPECT_EQ(row.checkpoint, Checkpoint::kExceptLast);
  EXPECT_EQ(row.batch_size, 1280);
  EXPECT_THAT(row.size, ElementsAre(18, 256));
  EXPECT_THAT(row.published, ElementsAre(132.413, 4.953, 3.48));
  const Experiment& p100 = find(rows, "p100-n8");
  EXPECT_EQ(p100.base, "p100-n2");
  EXPECT_THAT(p100.size, ElementsAre(18, 128));
  EXPECT_THAT(p100.published, ElementsAre(std::nullopt, std::nullopt, 2.7));
}

// A GB of GPipe is 10^9 bytes, a GiB of torchgpipe 2^30 bytes.
TEST(AmoebaNetMemoryBenchmark, AreTorchgpipesAndGPipesFiguresInBytes) {
  const auto rows = amoebanetd_memory_benchmark().paper.experiments;
  EXPECT_THAT(find(rows, "baseline").published,
              ElementsAre(81.5e6, 0.91 * 1073741824, std::nullopt, 82e6, 1.05e9,
                          6.26e9));
  const Experiment& row = find(rows, "pipeline-8");
  EXPECT_THAT(row.size, ElementsAre(72, 512));
  EXPECT_EQ(row.chunks, 128);
  EXPECT_THAT(row.published,
              ElementsAre(1840e6, 20.62 * 1073741824, 10.83 * 1073741824,
                          1800e6, 24.62 * 1e9, 26.24 * 1e9));
}

TEST(TransformerSpeedBenchmark, AreGPipesFigures) {
  const auto rows = transformer_speed_benchmark().paper.experiments;
  const Experiment& row = find(rows, "n8m32");
  EXPECT_THAT(row.size, ElementsAre(48, 2048, 1024, 32000));
  EXPECT_THAT(row.balance, ElementsAre(13, 12, 12, 12, 12, 12, 12, 14));
  EXPECT_THAT(row.published, ElementsAre(6.3));
  const Experiment& p100 = find(rows, "p100-n4");
  EXPECT_THAT(p100.size, ElementsAre(24, 2048, 1024, 32000));
  EXPECT_THAT(p100.published, ElementsAre(1.8));
}

TEST(TransformerMemoryBenchmark, AreGPipesFiguresInBytes) {
  const auto rows = transformer_memory_benchmark().paper.experiments;
  EXPECT_THAT(names_of(rows), ElementsAre("naive-1", "pipeline-1", "pipeline-8",
                                          "pipeline-32", "pipeline-128"));
  const Experiment& row = find(rows, "pipeline-128");
  EXPECT_EQ(row.size.front(), 1663);
  EXPECT_THAT(row.published,
              ElementsAre(83900e6, 937.9 * 1073741824, 796.1 * 1073741824));
}

std::vector<Experiment> experiments_of(const AccuracyTable& table) {
  std::vector<Experiment> rows;
  for (const AccuracyRow& row : table.rows) rows.push_back(row.experiment);
  return rows;
}

const AccuracyRow& find(const AccuracyTable& table, const std::string& name) {
  for (const AccuracyRow& row : table.rows) {
    if (row.experiment.name == name) return row;
  }
  throw std::invalid_argument("there is no row " + name);
}

TEST(Resnet101AccuracyRows, AreOfTheWholeModelWithAFigureForEachColumn) {
  const MetaGuard meta;
  const auto layers = static_cast<int64_t>(models::resnet101(1)->size());
  const auto rows = experiments_of(accuracy_table(/*small=*/false));
  expect_names_of_their_own(rows);
  for (const Experiment& row : rows) {
    SCOPED_TRACE(row.name);
    expect_balance_of(row, layers);
    EXPECT_EQ(row.batch_size % row.chunks, 0);
    EXPECT_THAT(row.published, SizeIs(accuracy_columns().size()));
  }
}

TEST(Resnet101AccuracyRows, AreTorchgpipesFigures) {
  const AccuracyTable table = accuracy_table(/*small=*/false);
  EXPECT_EQ(table.epochs, 90);
  EXPECT_EQ(table.warmup_epochs, 4);
  EXPECT_EQ(table.warmup_rate, 0.1);
  const AccuracyRow& small = find(table, "pipeline-256");
  EXPECT_THAT(small.experiment.balance, ElementsAre(140, 230));
  EXPECT_THAT(small.experiment.published,
              ElementsAre(21.99, 0.13, 117.432, 0.651));
  const AccuracyRow& large = find(table, "pipeline-4k");
  EXPECT_EQ(large.experiment.batch_size, 4096);
  EXPECT_EQ(large.experiment.chunks, 64);
  EXPECT_EQ(large.rate, 1.6);
  EXPECT_EQ(large.devices, 8);
  EXPECT_THAT(large.experiment.published,
              ElementsAre(22.13, 0.09, 378.746, 2.100));
}

TEST(Resnet101AccuracyRows, SpeedUpsAreByDataparallel256) {
  const AccuracyTable table = accuracy_table(/*small=*/false);
  const double one =
      find(table, "dataparallel-256").experiment.published.at(2).value();
  int checked = 0;
  for (const Experiment& row : experiments_of(table)) {
    if (!row.published.at(2)) continue;
    ++checked;
    EXPECT_NEAR(*row.published.at(2) / one, row.published.at(3).value(),
                0.0005 + 1e-9)
        << row.name;
  }
  EXPECT_EQ(checked, 5);
}

TEST(Resnet101AccuracyRows, WhatIsNoPipelineOfResNet101IsLeftOut) {
  std::vector<std::string> run;
  for (const AccuracyRow& row : accuracy_table(/*small=*/false).rows) {
    if (row.left_out.empty()) run.push_back(row.experiment.name);
  }
  EXPECT_THAT(run, ElementsAre("naive-128", "pipeline-256", "pipeline-1k",
                               "pipeline-4k"));
}

TEST(Resnet101AccuracyRows, GPipesErrorsAreOfItsTable4) {
  const AccuracyTable table = accuracy_table(/*small=*/false);
  const AccuracyRow& row = find(table, "amoebanet-b-imagenet");
  EXPECT_EQ(row.devices, 4);
  EXPECT_THAT(
      row.experiment.published,
      ElementsAre(100 - 84.4, std::nullopt, std::nullopt, std::nullopt));
}

TEST(Resnet101AccuracyRows, SmallOnesKeepTheProportionsOfTheirMiniBatches) {
  const AccuracyTable table = accuracy_table(/*small=*/true);
  EXPECT_EQ(names_of(experiments_of(table)),
            names_of(experiments_of(accuracy_table(/*small=*/false))));
  const AccuracyRow& of_1k = find(table, "pipeline-1k");
  const AccuracyRow& of_4k = find(table, "pipeline-4k");
  EXPECT_EQ(of_1k.experiment.batch_size, 128);
  EXPECT_EQ(of_4k.experiment.batch_size, 512);
  EXPECT_EQ(of_4k.experiment.chunks, 8);
  EXPECT_DOUBLE_EQ(of_1k.rate.value(), 0.004);
  EXPECT_THAT(of_1k.experiment.published,
              ElementsAre(22.24, 0.19, 294.739, 1.634));
}

TEST(TransformerModelTest, BalancesAreEvenAndComplete) {
  EXPECT_THAT(even_balance(3, 1), ElementsAre(9));
  EXPECT_THAT(even_balance(5, 2), ElementsAre(7, 6));
  EXPECT_THAT(even_balance(4, 4), ElementsAre(3, 2, 2, 4));
  const auto balance = even_balance(1663, 128);
  EXPECT_EQ(std::accumulate(balance.begin(), balance.end(), int64_t{0}),
            2 * 1663 + 3);
}

TEST(TransformerModelTest, BlocksComeApartForMorePartitions) {
  EXPECT_THAT(even_balance(4, 8), ElementsAre(2, 1, 1, 1, 1, 1, 1, 3));
  EXPECT_THAT(even_balance(4, 5), ElementsAre(3, 2, 2, 1, 3));
}

// Table 1 of GPipe: 785.8M parameters for L = 13.
TEST(TransformerModelTest, ModelsAreThoseOfThePaper) {
  Experiment experiment;
  experiment.size = size_of(13, kGPipeShape);
  EXPECT_THAT(experiment.size, ElementsAre(13, 2048, 1024, 32000));
  const MetaGuard meta;
  const auto model = transformer_of(experiment);
  int64_t parameters = 0;
  for (const auto& tensor : model->parameters()) parameters += tensor.numel();
  EXPECT_EQ(parameters, 785765632);
  EXPECT_EQ(model->size(), 29U);
}

}  // namespace
}  // namespace gpipe::benchmarks
