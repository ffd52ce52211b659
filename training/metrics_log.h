// Public: what a run measures at its steps, in FOLDER/metrics.csv and in
// TensorBoard's event files. docs/training.md shows it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "training/event_file.h"

namespace gpipe {

// The CSV file has a line of names, "step,seconds,<columns>", and a row for
// each write(). Seconds are Unix time. Names are quoted where RFC 4180 says so;
// lines end with "\n". Numbers have as many digits as it takes to read the same
// double again; those that are none are nan, inf and -inf. TensorBoard gets
// them as float.
//
// A run that is resumed from a checkpoint writes on where that was made: what
// an earlier process has written of later steps is dropped from the CSV file,
// and so is a last row that a killed process has not finished. The event file
// is made anew of the rows that are left, and those of earlier processes are
// removed (the last one is emptied), so that TensorBoard, started now or
// already running, shows what the CSV file has.
//
// One log at a time may have a folder: that of one rank, if there are several.
// Threads: one at a time.
class MetricsLog {
 public:
  // `columns`: the names of the metrics, e.g. "train/loss"; what is before the
  // slash groups them in TensorBoard. `last_step`: the one that is resumed
  // from, whose row is the last to be kept; 0: begins anew, without rows. Makes
  // the folder. `clock`: Unix time in seconds; for tests.
  //
  // Errors: c10::ValueError for a last_step below 0, a name that is empty or
  // there twice (as "step" and "seconds" are), or a metrics.csv that has other
  // columns, which is left as it is (where a log begins anew: one that is no
  // log); c10::Error with the path and the system's reason for what cannot be
  // read or written.
  MetricsLog(const std::string& folder, std::vector<std::string> columns,
             int64_t last_step, std::function<double()> clock = nullptr);
  ~MetricsLog();

  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  // A row with a value for each column that is named, nothing for the others.
  // It is in both files when this returns, though not yet on the disk for sure.
  //
  // Errors: c10::ValueError for an unknown name, or a step that is not above
  // last_step and the one before; nothing is written then. c10::Error with the
  // path and the system's reason; after that the log can only be destroyed.
  void write(int64_t step, const std::map<std::string, double>& values);

  // "FOLDER/metrics.csv".
  const std::string& csv_path() const { return csv_path_; }

 private:
  const std::string csv_path_;
  const std::vector<std::string> columns_;
  const std::function<double()> clock_;
  int64_t last_step_;
  int csv_ = -1;  // open to append
  uint64_t written_ = 0;
  std::optional<EventFile> events_;
};

}  // namespace gpipe
