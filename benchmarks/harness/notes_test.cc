#include "benchmarks/harness/notes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Benchmark noted_benchmark() {
  Benchmark benchmark;
  benchmark.paper.text = "images";
  benchmark.small.text = "toys";
  benchmark.paper.notes = {"Logits are large."};
  benchmark.published = {{"theirs", Figure::kSpeed}};
  benchmark.notes = {"GB are 10^9 bytes."};
  return benchmark;
}

RunOptions options_for(Mode mode) {
  RunOptions options;
  options.settings.devices = {c10::kCPU};
  options.mode = mode;
  options.samples = 20;
  options.epochs = 4;
  options.skip_epochs = 1;
  return options;
}

TEST(NotesTest, TellsTheSizesAndHowItWasMeasured) {
  RunOptions options = options_for(Mode::kMeasure);
  options.settings.seed = 7;
  options.small = true;
  EXPECT_THAT(notes_for(noted_benchmark(), options),
              AllOf(Contains("Reduced: toys."),
                    Contains(HasSubstr("of epochs 2 to 4, of 20 samples each")),
                    Contains("Seed 7."), Contains("GB are 10^9 bytes."),
                    Contains(HasSubstr("a speed-up of 1 would be")),
                    Contains(StartsWith("Published figures are of other")),
                    Not(Contains("Logits are large."))));
  options.small = false;
  options.settings.deterministic = true;
  EXPECT_THAT(
      notes_for(noted_benchmark(), options),
      AllOf(Contains("As published: images."), Contains("Logits are large."),
            Contains("Seed 7, deterministic kernels only.")));
}

TEST(NotesTest, TellsThatRowsHaveOneBatch) {
  RunOptions options = options_for(Mode::kMeasure);
  options.experiments.resize(2);
  const auto one_batch = Contains(HasSubstr("The same mini-batch"));
  EXPECT_THAT(notes_for(noted_benchmark(), options), one_batch);
  options.experiments[1].batch_size = 8;
  EXPECT_THAT(notes_for(noted_benchmark(), options), Not(one_batch));
  // Rows with different bases have different mini-batches.
  options.rows.same_batch = true;
  EXPECT_THAT(notes_for(noted_benchmark(), options),
              AllOf(Not(one_batch),
                    Contains(HasSubstr("has the mini-batch of its base"))));
}

TEST(NotesTest, AMemoryTableSaysNothingOnSpeeds) {
  Benchmark benchmark = noted_benchmark();
  benchmark.table_kind = TableKind::kMemory;
  const auto notes = notes_for(benchmark, options_for(Mode::kMeasure));
  EXPECT_THAT(notes,
              AllOf(Contains("On CPUs: all partitions share one memory."),
                    Not(Contains(HasSubstr("speed")))));
  // A memory table does not show the published speeds.
  EXPECT_THAT(notes, Not(Contains("GB are 10^9 bytes.")));
  benchmark.published = {{"theirs", Figure::kTotalBytes}};
  EXPECT_THAT(notes_for(benchmark, options_for(Mode::kMeasure)),
              Contains("GB are 10^9 bytes."));
}

TEST(NotesTest, TellsThatPartitionsShareADevice) {
  RunOptions options = options_for(Mode::kMeasure);
  const auto shared = Contains(HasSubstr("Partitions share a device"));
  options.settings.devices = {{c10::kCUDA, 0}, {c10::kCUDA, 1}};
  EXPECT_THAT(notes_for(noted_benchmark(), options), Not(shared));
  options.settings.devices = {{c10::kCUDA, 0}, {c10::kCUDA, 0}};
  EXPECT_THAT(notes_for(noted_benchmark(), options), shared);
}

TEST(NotesTest, NumbersThatAreNotMeasuredAreCalledSo) {
  EXPECT_THAT(notes_for(noted_benchmark(), options_for(Mode::kSimulate)),
              Contains(StartsWith("Simulated:")));
  EXPECT_THAT(notes_for(noted_benchmark(), options_for(Mode::kDryRun)),
              AllOf(Contains(StartsWith("Dry-run:")),
                    Contains(HasSubstr("Model memory:"))));
}

}  // namespace
}  // namespace gpipe::benchmarks
