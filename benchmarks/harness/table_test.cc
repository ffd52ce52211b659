#include "benchmarks/harness/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::benchmarks {
namespace {

using ::testing::HasSubstr;

Table make_table() {
  Table table;
  table.title = "Speed";
  table.columns = {"batch", "balance", "samples/s"};
  table.rows = {{"baseline", {int64_t{32}, Cell(), Cell(12.3456, 2)}, {}, ""},
                {"pipeline-2", {int64_t{8}, "3,4", Cell(5.0, 2)}, {}, ""}};
  table.notes = {"A note."};
  return table;
}

// Returns a table with a row that failed and has no cells.
Table make_failed_table() {
  Table table = make_table();
  table.rows.push_back({"pipeline-4", {}, {}, "out of memory: 1 | 2"});
  return table;
}

TEST(TableTest, TextIsAligned) {
  EXPECT_EQ(to_text(make_table()),
            "Speed\n"
            "\n"
            "experiment  batch  balance  samples/s\n"
            "----------  -----  -------  ---------\n"
            "baseline       32  -            12.35\n"
            "pipeline-2      8  3,4           5.00\n"
            "\n"
            "A note.\n");
}

TEST(TableTest, TextTellsWhyARowFailed) {
  EXPECT_EQ(to_text(make_failed_table()),
            "Speed\n"
            "\n"
            "experiment  batch  balance  samples/s  error\n"
            "----------  -----  -------  ---------  --------------------\n"
            "baseline       32  -            12.35\n"
            "pipeline-2      8  3,4           5.00\n"
            "pipeline-4      -  -                -  out of memory: 1 | 2\n"
            "\n"
            "A note.\n");
}

TEST(TableTest, MarkdownEscapesBars) {
  EXPECT_EQ(to_markdown(make_failed_table()),
            "### Speed\n"
            "\n"
            "| experiment | batch | balance | samples/s | error |\n"
            "| --- | ---: | --- | ---: | --- |\n"
            "| baseline | 32 | - | 12.35 |  |\n"
            "| pipeline-2 | 8 | 3,4 | 5.00 |  |\n"
            "| pipeline-4 | - | - | - | out of memory: 1 \\| 2 |\n"
            "\n"
            "- A note.\n");
}

TEST(TableTest, CsvQuotesWhatNeedsIt) {
  Table table = make_failed_table();
  table.rows[0].error = "said \"no\"";
  EXPECT_EQ(to_csv(table),
            "# Speed\n"
            "# A note.\n"
            "experiment,batch,balance,samples/s,error\n"
            "baseline,32,,12.35,\"said \"\"no\"\"\"\n"
            "pipeline-2,8,\"3,4\",5.00,\n"
            "pipeline-4,,,,out of memory: 1 | 2\n");
}

// Returns a table of sizes in bytes, one of which is unknown.
Table make_table_of_bytes() {
  Table table;
  table.columns = {"peak memory"};
  table.rows = {{"a", {Cell::bytes(1536)}, {}, ""},
                {"b", {Cell::bytes(std::nullopt)}, {}, ""}};
  return table;
}

TEST(TableTest, BytesHaveAUnitForPeople) {
  EXPECT_EQ(to_text(make_table_of_bytes()),
            "\n\n"
            "experiment  peak memory\n"
            "----------  -----------\n"
            "a               1.5 KiB\n"
            "b                     -\n");
}

TEST(TableTest, BytesHaveAllDigitsForPrograms) {
  EXPECT_EQ(to_csv(make_table_of_bytes()),
            "experiment,peak memory bytes,error\n"
            "a,1536,\n"
            "b,,\n");
}

TEST(TableTest, CsvCommentsStayComments) {
  Table table = make_table();
  table.rows.clear();
  table.notes = {"two\nlines"};
  EXPECT_EQ(to_csv(table),
            "# Speed\n"
            "# two\n"
            "# lines\n"
            "experiment,batch,balance,samples/s,error\n");
}

TEST(TableTest, CellIsATextANumberOrNothing) {
  EXPECT_TRUE(Cell().is_nothing());
  EXPECT_TRUE(Cell(std::nullopt, 3).is_nothing());
  EXPECT_EQ(Cell(0.5, 3).text(), "0.500");
  EXPECT_EQ(Cell(int64_t{7}).number(), 7.0);
  EXPECT_EQ(Cell("7").number(), std::nullopt);
}

Environment make_environment() {
  Environment environment;
  environment.facts = {{"cpu", "a \"fast\" one"}};
  environment.cores = 2;
  return environment;
}

TEST(JsonTest, IsGoogleBenchmarksSchema) {
  Table table;
  table.title = "Speed";
  table.columns = {"batch", "balance"};
  table.rows = {{"baseline", {int64_t{32}, "3,4"}, {{0.5, 0.25}}, ""}};
  EXPECT_EQ(to_json(table, "speed", make_environment()),
            R"({
  "context": {
    "cpu": "a \"fast\" one",
    "executable": "speed",
    "num_cpus": 2,
    "caches": [],
    "title": "Speed"
  },
  "benchmarks": [
    {
      "name": "speed/baseline",
      "run_name": "speed/baseline",
      "run_type": "iteration",
      "threads": 1,
      "repetitions": 1,
      "repetition_index": 0,
      "iterations": 1,
      "real_time": 500,
      "cpu_time": 250,
      "time_unit": "ms",
      "batch": 32,
      "balance": "3,4"
    }
  ]
}
)");
}

TEST(JsonTest, AggregatesSeveralDurations) {
  Table table;
  table.rows = {{"a", {}, {{1, 1}, {2, 2}, {6, 3}}, ""}};
  const std::string json = to_json(table, "speed", make_environment());
  EXPECT_THAT(json, HasSubstr("\"repetition_index\": 2"));
  EXPECT_THAT(json, HasSubstr(R"("name": "speed/a_mean",
      "run_name": "speed/a",
      "run_type": "aggregate",
      "threads": 1,
      "repetitions": 3,
      "aggregate_name": "mean",
      "aggregate_unit": "time",
      "iterations": 3,
      "real_time": 3000,
      "cpu_time": 2000,)"));
  EXPECT_THAT(json, HasSubstr("speed/a_median"));
  EXPECT_THAT(json, HasSubstr("speed/a_stddev"));
}

TEST(JsonTest, RowsWithoutTimesKeepTheirFigures) {
  Table table;
  table.columns = {"peak"};
  table.rows = {{"a", {Cell::bytes(5363222000)}, {}, ""}};
  const std::string json = to_json(table, "memory", make_environment());
  EXPECT_THAT(json, HasSubstr(R"("name": "memory/a",
      "run_name": "memory/a",
      "run_type": "iteration",
      "threads": 1,
      "iterations": 1,
      "real_time": 0,
      "cpu_time": 0,
      "time_unit": "ms",
      "peak bytes": 5363222000
)"));
}

TEST(JsonTest, TellsAFailedRow) {
  Table table;
  table.rows = {{"a", {}, {}, "line\nbreak"}};
  const std::string json = to_json(table, "speed", make_environment());
  EXPECT_THAT(json, HasSubstr("\"error_occurred\": true"));
  EXPECT_THAT(json, HasSubstr("\"error_message\": \"line\\nbreak\""));
}

}  // namespace
}  // namespace gpipe::benchmarks
