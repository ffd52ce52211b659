// A log of a run's metrics by step, in FOLDER/metrics.csv and in
// TensorBoard's event files. docs/training.md shows an example.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/weights/files.h"
#include "training/files/event_file.h"

namespace gpipe {

// A writer of a CSV file and a TensorBoard event file with the same numbers.
//
// The CSV file has a header line, "step,seconds,<columns>", and one row per
// write(). Seconds are Unix time. Names are quoted where RFC 4180 requires it,
// and lines end with "\n". Numbers have the fewest digits that read back as the
// same double. Other values are written as nan, inf and -inf. TensorBoard gets
// all values as float.
//
// A run that resumes from a run checkpoint continues the log at the
// checkpoint's step. Rows of later steps, which an earlier process wrote, are
// removed from the CSV file. So are a damaged row, as a crash of the machine
// can leave it, and all rows behind it. A new event file repeats the rows that
// remain. The event files of earlier processes are removed, except for the last
// one, which is emptied. So TensorBoard shows what the CSV file contains, even
// if TensorBoard is already running.
//
// Only one log may use a folder at any time. With several ranks, one rank
// writes the log. Not thread-safe.
class MetricsLog {
 public:
  // Creates the folder and both files, or continues an existing CSV file.
  //
  // `columns`: the names of the metrics, for example "train/loss". TensorBoard
  // groups them by the part before the slash.
  // `last_step`: the step that the run resumes from, the last to keep its row.
  // 0 starts a new log without rows.
  // `clock`: a function that returns Unix time in seconds, for tests.
  //
  // Throws c10::ValueError if `last_step` is below 0, or if a name is empty,
  // appears twice, or is "step" or "seconds". Throws c10::ValueError, and
  // leaves metrics.csv unchanged, if that file has other columns. With
  // `last_step` 0 it throws only if metrics.csv is not a log. Throws
  // c10::Error, with the path and the system's reason, if a file cannot be read
  // or written.
  MetricsLog(const std::string& folder, std::vector<std::string> columns,
             int64_t last_step, std::function<double()> clock = nullptr);

  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  // Writes a row with the given values. Columns without a value stay empty.
  // Both files contain the row when this returns, but it may not be on the disk
  // yet.
  //
  // Throws c10::ValueError, and writes nothing, if a name is unknown or if
  // `step` is not above all earlier steps and `last_step`. Throws c10::Error,
  // with the path and the system's reason, if a file cannot be written. After
  // that the log can only be destroyed.
  void write(int64_t step, const std::map<std::string, double>& values);

  // Returns "FOLDER/metrics.csv".
  const std::string& csv_path() const { return csv_path_; }

 private:
  const std::string csv_path_;
  const std::vector<std::string> columns_;
  const std::function<double()> clock_;
  int64_t last_step_;
  std::optional<internal::FileWriter> csv_;  // open to append
  std::optional<internal::EventFile> events_;
};

}  // namespace gpipe
