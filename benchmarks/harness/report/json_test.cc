#include "benchmarks/harness/report/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::benchmarks {
namespace {

using ::testing::HasSubstr;

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
