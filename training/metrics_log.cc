#include "training/metrics_log.h"

#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "gpipe/base/text.h"
#include "models/weights/files.h"
#include "training/files/file_operations.h"

namespace gpipe {
namespace {

constexpr char kFirstColumns[] = "step,seconds";

double unix_time() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string quoted(const std::string& name) {
  if (name.find_first_of(",\"\r\n") == std::string::npos) return name;
  return "\"" + absl::StrReplaceAll(name, {{"\"", "\"\""}}) + "\"";
}

std::string header_of(const std::vector<std::string>& columns) {
  std::set<std::string> names{"step", "seconds"};
  std::string line = kFirstColumns;
  for (const std::string& name : columns) {
    TORCH_CHECK_VALUE(!name.empty(), "a column of metrics has no name");
    TORCH_CHECK_VALUE(names.insert(name).second, "two columns of metrics.csv ",
                      "would be called \"", name, "\"");
    line += "," + quoted(name);
  }
  return line + "\n";
}

// Returns the shortest text that reads back as the same number.
std::string to_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

struct Row {
  int64_t step = 0;
  double seconds = 0;
  std::vector<std::optional<double>> values;  // by column
};

// Returns nullopt if `line` is not a row with this number of columns. A crash
// of the machine can leave such a line.
std::optional<Row> read_row(std::string_view line, std::size_t columns) {
  const std::vector<std::string> fields =
      absl::StrSplit(std::string(line), ',');
  if (fields.size() != columns + 2) return std::nullopt;
  const auto step = internal::read_number<int64_t>(fields[0]);
  const auto seconds = internal::read_number<double>(fields[1]);
  if (!step || !seconds) return std::nullopt;
  Row row{*step, *seconds, {}};
  for (std::size_t k = 2; k < fields.size(); ++k) {
    row.values.push_back(internal::read_number<double>(fields[k]));
    if (!row.values.back() && !fields[k].empty()) return std::nullopt;
  }
  return row;
}

// The part of an existing log that a new log keeps.
struct LogStart {
  std::string csv;  // the header and the rows, byte for byte
  std::vector<Row> rows;
};

// Reads the complete rows at the beginning of the file whose steps ascend and
// are at most `last_step`.
LogStart read_start(const std::string& path,
                    const std::vector<std::string>& columns,
                    int64_t last_step) {
  const std::string header = header_of(columns);
  LogStart kept{header, {}};
  if (!exists(path)) return kept;
  const std::string there = internal::read_text(path);
  // A new log may replace the rows of another run, but no other kind of file.
  const std::string wanted = last_step == 0 ? kFirstColumns : header;
  const std::size_t compared = std::min(there.size(), wanted.size());
  const bool is_log = there.compare(0, compared, wanted, 0, compared) == 0 &&
                      (last_step > 0 || there.size() == compared ||
                       there[compared] == ',' || there[compared] == '\n');
  TORCH_CHECK_VALUE(is_log, path, ": has the columns \"",
                    there.substr(0, there.find('\n')), "\", and not \"",
                    header.substr(0, header.size() - 1),
                    "\". Move it away, or use another folder");
  if (last_step == 0) return kept;
  for (std::size_t begin = header.size(); begin < there.size();) {
    const std::size_t end = there.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string_view line(&there[begin], end - begin);
    auto row = read_row(line, columns.size());
    const int64_t before = kept.rows.empty() ? 0 : kept.rows.back().step;
    if (!row || row->step <= before || row->step > last_step) break;
    kept.csv.append(there, begin, end + 1 - begin);
    kept.rows.push_back(*std::move(row));
    begin = end + 1;
  }
  return kept;
}

// Removes old event files. `paths` is in ascending order. The last file is only
// emptied: a running TensorBoard reads it, and may not continue with a newer
// file if it is gone.
void retire(const std::vector<std::string>& paths) {
  for (std::size_t k = 0; k < paths.size(); ++k) {
    const bool last = k + 1 == paths.size();
    const int result =
        last ? truncate(paths[k].c_str(), 0) : unlink(paths[k].c_str());
    if (result == 0) continue;
    internal::fail_file(
        paths[k], last ? "cannot be emptied" : "cannot be removed", errno);
  }
}

using Scalars = std::vector<std::pair<std::string, double>>;

}  // namespace

MetricsLog::MetricsLog(const std::string& folder,
                       std::vector<std::string> columns, int64_t last_step,
                       std::function<double()> clock)
    : csv_path_((std::filesystem::path(folder) / "metrics.csv").string()),
      columns_(std::move(columns)),
      clock_(clock ? std::move(clock) : unix_time),
      last_step_(last_step) {
  TORCH_CHECK_VALUE(last_step >= 0, "last_step must be at least 0; it is ",
                    last_step);
  internal::make_folders(folder);
  const LogStart kept = read_start(csv_path_, columns_, last_step);
  internal::AtomicFile file(csv_path_);
  file.write(kept.csv.data(), kept.csv.size());
  file.commit();

  const std::vector<std::string> old_events =
      internal::EventFile::all_in(folder);
  const double now = clock_();
  events_.emplace(folder, now);
  events_->restart(now, 1);
  for (const Row& row : kept.rows) {
    Scalars scalars;
    for (std::size_t k = 0; k < columns_.size(); ++k) {
      if (row.values[k]) scalars.emplace_back(columns_[k], *row.values[k]);
    }
    events_->scalars(row.seconds, row.step, scalars);
  }
  retire(old_events);

  csv_.emplace(csv_path_,
               open(csv_path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
}

void MetricsLog::write(int64_t step,
                       const std::map<std::string, double>& values) {
  TORCH_CHECK_VALUE(step > last_step_, "metrics of step ", step,
                    " come after those of step ", last_step_,
                    "; steps must ascend");
  for (const auto& [name, value] : values) {
    TORCH_CHECK_VALUE(
        std::find(columns_.begin(), columns_.end(), name) != columns_.end(),
        "there is no metric \"", name, "\"; the columns of ", csv_path_,
        " are ", c10::Join(", ", columns_));
  }
  const double now = clock_();
  std::string row = std::to_string(step) + "," + to_text(now);
  Scalars scalars;
  for (const std::string& name : columns_) {
    row += ",";
    const auto value = values.find(name);
    if (value == values.end()) continue;
    row += to_text(value->second);
    scalars.emplace_back(*value);
  }
  row += "\n";
  csv_->write(row.data(), row.size());
  events_->scalars(now, step, scalars);
  last_step_ = step;
}

}  // namespace gpipe
