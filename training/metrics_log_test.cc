#include "training/metrics_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "models/testing/files.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using testing::error_of;
using ::testing::HasSubstr;
using testing::names_in;
using testing::new_folder;
using ::testing::Not;
using testing::read_bytes;
using ::testing::SizeIs;
using ::testing::StartsWith;
using testing::value_error_of;
using testing::write_bytes;

// Returns a clock that advances half a second per call.
std::function<double()> clock_from(double seconds) {
  return [seconds]() mutable { return seconds += 0.5; };
}

class MetricsLogTest : public ::testing::Test {
 protected:
  std::string csv() const { return read_bytes(path_); }
  // Returns the content of all event files, in TensorBoard's reading order.
  std::string events() const {
    std::string bytes;
    for (const std::string& name : names_in(folder_)) {
      if (name.rfind("events", 0) == 0) bytes += read_bytes(folder_ + name);
    }
    return bytes;
  }

  const std::string folder_ = new_folder();
  const std::string path_ = folder_ + "metrics.csv";
  const std::vector<std::string> columns_{"train/loss", "lr"};
};

TEST_F(MetricsLogTest, WritesARowForAStep) {
  MetricsLog log(folder_, columns_, 0, clock_from(1000));
  EXPECT_EQ(csv(), "step,seconds,train/loss,lr\n");
  log.write(1, {{"train/loss", 0.5}, {"lr", 0.1}});
  EXPECT_EQ(csv(), "step,seconds,train/loss,lr\n1,1001,0.5,0.1\n");
  log.write(20, {{"lr", 1e-10}});
  log.write(21, {});
  EXPECT_EQ(csv(),
            "step,seconds,train/loss,lr\n"
            "1,1001,0.5,0.1\n20,1001.5,,1e-10\n21,1002,,\n");
}

TEST_F(MetricsLogTest, WritesNumbersThatAreReadAsTheSameAgain) {
  MetricsLog log(folder_, columns_, 0, clock_from(0));
  const double third = 1.0 / 3;
  log.write(1, {{"train/loss", third},
                {"lr", std::numeric_limits<double>::denorm_min()}});
  log.write(2, {{"train/loss", std::nan("")}, {"lr", -INFINITY}});
  log.write(3, {{"train/loss", INFINITY}, {"lr", -0.0}});
  EXPECT_EQ(csv(),
            "step,seconds,train/loss,lr\n"
            "1,1,0.3333333333333333,5e-324\n2,1.5,nan,-inf\n3,2,inf,-0\n");
  EXPECT_EQ(std::stod("0.3333333333333333"), third);
}

TEST_F(MetricsLogTest, QuotesNames) {
  const std::vector<std::string> columns{"a,b", "say \"c\"", "d e", "f\ng"};
  const std::string header =
      "step,seconds,\"a,b\",\"say \"\"c\"\"\",d e,\"f\ng\"\n";
  MetricsLog(folder_, columns, 0, clock_from(0)).write(1, {{"a,b", 7}});
  EXPECT_EQ(csv(), header + "1,1,7,,,\n");
  MetricsLog(folder_, columns, 1, clock_from(0)).write(2, {{"f\ng", 8}});
  EXPECT_EQ(csv(), header + "1,1,7,,,\n2,1,,,,8\n");
}

TEST_F(MetricsLogTest, DropsWhatComesAfterTheStepThatIsResumed) {
  {
    MetricsLog log(folder_, columns_, 0, clock_from(0));
    for (int64_t step = 1; step <= 5; ++step) {
      log.write(step, {{"lr", static_cast<double>(step)}});
    }
  }
  MetricsLog log(folder_, columns_, 3, clock_from(100));
  EXPECT_EQ(csv(), "step,seconds,train/loss,lr\n1,1,,1\n2,1.5,,2\n3,2,,3\n");
  EXPECT_THAT(value_error_of([&] { log.write(3, {}); }),
              StartsWith("metrics of step 3 come after those of step 3"));
  log.write(4, {{"lr", 40.0}});
  EXPECT_EQ(csv(),
            "step,seconds,train/loss,lr\n1,1,,1\n2,1.5,,2\n3,2,,3\n"
            "4,101,,40\n");
}

// Returns the bytes of a tag and its value in an event file.
std::string value_of(const std::string& tag, float value) {
  std::string bytes = tag + "\x15";
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  return bytes;
}

TEST_F(MetricsLogTest, HasTensorBoardShowWhatTheCsvFileHas) {
  write_bytes(folder_ + "events.out.tfevents.0000000001.other", "theirs");
  {
    MetricsLog log(folder_, columns_, 0, clock_from(0));
    for (int64_t step = 1; step <= 5; ++step) {
      log.write(step, {{"lr", 10.0 + static_cast<double>(step)}});
    }
  }
  const std::string before = events();
  for (const float lr : {11.F, 12.F, 13.F, 14.F, 15.F}) {
    EXPECT_THAT(before, HasSubstr(value_of("lr", lr)));
  }
  MetricsLog log(folder_, columns_, 3, clock_from(100));
  log.write(4, {{"lr", 40.0}});
  // The foreign event file, two of this class (one is empty), the CSV file.
  EXPECT_THAT(names_in(folder_), SizeIs(4));
  EXPECT_EQ(read_bytes(folder_ + names_in(folder_)[1]), "");
  const std::string after = events();
  EXPECT_THAT(after, StartsWith("theirs"));
  for (const float lr : {11.F, 12.F, 13.F, 40.F}) {
    EXPECT_THAT(after, HasSubstr(value_of("lr", lr)));
  }
  for (const float lr : {14.F, 15.F}) {
    EXPECT_THAT(after, Not(HasSubstr(value_of("lr", lr))));
  }
  // A running TensorBoard drops the data of all steps from 1 on.
  EXPECT_THAT(after, HasSubstr(std::string("\x10\1\x3A\2\x8\1", 6)));
  // Rows keep the time at which they were written.
  const double then = 2;  // the time of step 3
  std::string row(reinterpret_cast<const char*>(&then), sizeof then);
  row += std::string("\x10\3\x2A", 3);
  EXPECT_THAT(after, HasSubstr(row));
}

TEST_F(MetricsLogTest, LeavesTwoEventFilesHoweverOftenItIsResumed) {
  for (int64_t step = 0; step < 5; ++step) {
    MetricsLog log(folder_, columns_, step, clock_from(0));
    log.write(step + 1, {{"lr", static_cast<double>(step)}});
  }
  EXPECT_THAT(names_in(folder_), SizeIs(3));
  for (const float lr : {0.F, 1.F, 2.F, 3.F, 4.F}) {
    EXPECT_THAT(events(), HasSubstr(value_of("lr", lr)));
  }
}

TEST_F(MetricsLogTest, BeginsAnewAtStepZero) {
  { MetricsLog(folder_, columns_, 0, clock_from(0)).write(1, {}); }
  MetricsLog log(folder_, columns_, 0, clock_from(0));
  EXPECT_EQ(csv(), "step,seconds,train/loss,lr\n");
}

TEST_F(MetricsLogTest, BeginsWithoutRowsWhereThereIsNoFile) {
  const MetricsLog log(folder_ + "a/b", columns_, 12, clock_from(0));
  EXPECT_EQ(log.csv_path(), folder_ + "a/b/metrics.csv");
  EXPECT_EQ(read_bytes(log.csv_path()), "step,seconds,train/loss,lr\n");
}

TEST_F(MetricsLogTest, KeepsTheWholeRowsOfAFileThatIsCutOff) {
  const std::string header = "step,seconds,train/loss,lr\n";
  const std::string first = "1,1,0.5,\n", second = "12,1.5,nan,3\n";
  const std::string whole = header + first + second;
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    write_bytes(path_, whole.substr(0, size));
    {
      MetricsLog log(folder_, columns_, 12, clock_from(0));
      log.write(13, {});
    }
    std::string expected = header;
    if (size >= header.size() + first.size()) expected += first;
    if (size >= whole.size()) expected += second;
    ASSERT_EQ(csv(), expected + "13,1,,\n") << size;
  }
}

TEST_F(MetricsLogTest, KeepsNothingFromARowOnThatIsNone) {
  const std::string good = "step,seconds,train/loss,lr\n1,1,0.5,\n";
  for (const std::string& bad :
       {std::string(9, '\0') + "\n", std::string("2,1,0.5x,\n"),
        std::string("2,,,\n"), std::string("2,1,,\0\n", 7),
        std::string("2,1,\n"), std::string("2,1,,,\n"), std::string("x,1,,\n"),
        std::string("\n"), std::string("1,2,,\n"),
        std::string("99999999999999999999,1,,\n")}) {
    write_bytes(path_, good + bad + "3,1,,\n");
    { MetricsLog(folder_, columns_, 1000, clock_from(0)); }
    EXPECT_EQ(csv(), good) << bad;
  }
}

TEST_F(MetricsLogTest, LeavesAFileWithOtherColumnsAlone) {
  for (const std::string other :
       {"step,seconds,train/loss\n1,1,1\n", "step,seconds,lr,train/loss\n",
        "a file of somebody else's", "step,seconds,train/loss,lr,acc\n"}) {
    write_bytes(path_, other);
    EXPECT_THAT(value_error_of([&] { MetricsLog(folder_, columns_, 5); }),
                AllOf(StartsWith(path_ + ": has the columns \"" +
                                 other.substr(0, other.find('\n')) +
                                 "\", and not \"step,seconds,train/loss,lr\""),
                      EndsWith("Move it away, or use another folder")));
    EXPECT_EQ(csv(), other);
  }
}

TEST_F(MetricsLogTest, BeginsAnewWhereALogHadOtherColumns) {
  write_bytes(path_, "step,seconds,train/loss\n1,1,1\n");
  { const MetricsLog log(folder_, columns_, 0, clock_from(0)); }
  EXPECT_EQ(csv(), "step,seconds,train/loss,lr\n");
  for (const std::string other :
       {"a file of somebody else's", "step,seconds_elapsed,foo\n1,2,3\n"}) {
    write_bytes(path_, other);
    EXPECT_THAT(value_error_of([&] { MetricsLog(folder_, columns_, 0); }),
                HasSubstr("has the columns \"" +
                          other.substr(0, other.find('\n')) + "\""));
    EXPECT_EQ(csv(), other);
  }
}

TEST_F(MetricsLogTest, RefusesWhatCannotBeWrittenAndWritesNothing) {
  MetricsLog log(folder_, columns_, 0, clock_from(0));
  log.write(5, {});
  const std::string rows = csv(), records = events();
  EXPECT_THAT(value_error_of([&] {
                log.write(6, {{"loss", 1}});
              }),
              AllOf(StartsWith("there is no metric \"loss\""),
                    HasSubstr("train/loss, lr")));
  EXPECT_THAT(value_error_of([&] { log.write(5, {}); }),
              HasSubstr("metrics of step 5 come after those of step 5"));
  EXPECT_EQ(csv(), rows);
  EXPECT_EQ(events(), records);
}

TEST_F(MetricsLogTest, RefusesColumnsThatCannotBe) {
  EXPECT_THAT(value_error_of([&] {
                MetricsLog(folder_, {"a", "a"}, 0);
              }),
              HasSubstr("two columns"));
  EXPECT_THAT(value_error_of([&] { MetricsLog(folder_, {"seconds"}, 0); }),
              HasSubstr("\"seconds\""));
  EXPECT_THAT(value_error_of([&] { MetricsLog(folder_, {""}, 0); }),
              HasSubstr("no name"));
  EXPECT_THAT(value_error_of([&] { MetricsLog(folder_, {"a"}, -1); }),
              HasSubstr("it is -1"));
  EXPECT_THAT(names_in(folder_), SizeIs(0));
}

TEST_F(MetricsLogTest, NamesAFolderThatCannotBeMade) {
  write_bytes(folder_ + "file", "");
  EXPECT_THAT(error_of([&] { MetricsLog(folder_ + "file", columns_, 0); }),
              HasSubstr(folder_ + "file: is not a folder"));
}

}  // namespace
}  // namespace gpipe
