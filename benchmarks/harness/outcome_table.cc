#include "benchmarks/harness/outcome_table.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "benchmarks/harness/timing.h"

namespace gpipe::benchmarks {
namespace {

// Returns the sum of `part`, a member or a function of DeviceMemory, over all
// devices, or none if memory was not measured.
template <typename Part>
std::optional<int64_t> sum(const Outcome& outcome, const Part& part) {
  if (outcome.memory.empty()) return std::nullopt;
  int64_t total = 0;
  for (const DeviceMemory& each : outcome.memory) {
    total += std::invoke(part, each);
  }
  return total;
}

}  // namespace

std::vector<double> speeds(const Outcome& outcome) {
  std::vector<double> speeds;
  for (const Duration& duration : outcome.durations) {
    speeds.push_back(static_cast<double>(outcome.samples) /
                     duration.wall_seconds);
  }
  return speeds;
}

std::optional<double> median_speed(const Outcome& outcome) {
  if (outcome.durations.empty()) return std::nullopt;
  return median(speeds(outcome));
}

const Outcome* base_of(const Benchmark& benchmark, const Outcome& outcome,
                       const std::vector<Outcome>& outcomes) {
  const std::string& own = outcome.experiment.base;
  const std::string& name = own.empty() ? benchmark.base : own;
  const auto found = std::ranges::find_if(outcomes, [&](const auto& other) {
    return other.experiment.name == name;
  });
  return found == outcomes.end() ? nullptr : &*found;
}

std::optional<double> figure_of(Figure figure, const Outcome& outcome,
                                const Outcome* base) {
  switch (figure) {
    case Figure::kSpeed:
      return median_speed(outcome);
    case Figure::kSpeedUp: {
      const auto speed = median_speed(outcome);
      const auto of_base = base ? median_speed(*base) : std::nullopt;
      if (!speed || !of_base) return std::nullopt;
      return *speed / *of_base;
    }
    case Figure::kParameters:
      return sum(outcome, [](const DeviceMemory& device) {
        return device.gradients / static_cast<int64_t>(sizeof(float));
      });
    case Figure::kLastingBytes:
      return sum(outcome, &DeviceMemory::lasting);
    case Figure::kActivationBytes:
      return sum(outcome, &DeviceMemory::activations);
    case Figure::kTotalBytes:
      return sum(outcome, &DeviceMemory::peak);
  }
  return std::nullopt;
}

bool is_speed(Figure figure) {
  return figure == Figure::kSpeed || figure == Figure::kSpeedUp;
}

bool is_bytes(Figure figure) {
  return !is_speed(figure) && figure != Figure::kParameters;
}

std::string to_string(Figure figure) {
  switch (figure) {
    case Figure::kSpeed:
      return "samples/s";
    case Figure::kSpeedUp:
      return "speed-up";
    case Figure::kParameters:
      return "parameters";
    case Figure::kLastingBytes:
      return "model memory";
    case Figure::kActivationBytes:
      return "activations";
    case Figure::kTotalBytes:
      return "total memory";
  }
  return "unknown";
}

namespace {

// A builder that fills a table column by column.
class Columns {
 public:
  explicit Columns(const std::vector<Outcome>& outcomes) : outcomes_(outcomes) {
    for (const Outcome& outcome : outcomes) {
      Row& row = table_.rows.emplace_back();
      row.name = outcome.experiment.name;
      row.durations = outcome.durations;
      row.error = outcome.error;
    }
  }

  // Adds a column. `cell`: called with each outcome, returns its cell.
  template <typename ToCell>
  void add(const std::string& name, const ToCell& cell) {
    table_.columns.push_back(name);
    for (size_t i = 0; i < outcomes_.size(); ++i) {
      table_.rows[i].cells.push_back(cell(outcomes_[i]));
    }
  }

  Table take() { return std::move(table_); }

 private:
  const std::vector<Outcome>& outcomes_;
  Table table_;
};

Cell text_or_nothing(const std::string& text) {
  return text.empty() ? Cell() : Cell(text);
}

Cell cell_of(Figure figure, std::optional<double> value) {
  if (is_bytes(figure)) {
    return Cell::bytes(value ? std::optional<int64_t>(*value) : std::nullopt);
  }
  return {value, figure == Figure::kParameters ? 0 : 3};
}

// Returns 0 if there is no caching allocator; see has_reserved().
int64_t reserved_of(const DeviceMemory& device) {
  return device.reserved.value_or(0);
}

bool has_reserved(const Outcome& outcome) {
  return std::ranges::any_of(outcome.memory, [](const DeviceMemory& device) {
    return device.reserved.has_value();
  });
}

void add_plan(const Benchmark& benchmark, Mode mode, Columns* columns) {
  if (!benchmark.size_column.empty()) {
    columns->add(benchmark.size_column, [](const Outcome& outcome) {
      return text_or_nothing(absl::StrJoin(outcome.experiment.size, ","));
    });
  }
  columns->add("batch", [](const Outcome& outcome) {
    return Cell(outcome.experiment.batch_size);
  });
  const auto of_pipeline = [columns](const char* name, auto cell) {
    columns->add(name, [cell](const Outcome& outcome) {
      const Experiment& experiment = outcome.experiment;
      return experiment.partitions > 0 ? Cell(cell(experiment)) : Cell();
    });
  };
  of_pipeline("chunks",
              [](const Experiment& experiment) { return experiment.chunks; });
  of_pipeline("balance", [](const Experiment& experiment) {
    return text_or_nothing(balance_text(experiment.balance));
  });
  of_pipeline("checkpoint", [](const Experiment& experiment) {
    return to_string(experiment.checkpoint);
  });
  columns->add("mode", [](const Outcome& outcome) {
    return Cell(to_string(outcome.mode));
  });
  if (mode != Mode::kMeasure) return;
  columns->add("devices", [](const Outcome& outcome) {
    return text_or_nothing(outcome.devices);
  });
  columns->add("CPU threads", [](const Outcome& outcome) {
    return text_or_nothing(outcome.threads);
  });
}

void add_speeds(const Benchmark& benchmark,
                const std::vector<Outcome>& outcomes, Columns* columns) {
  const auto spread = [columns](const char* name, auto pick) {
    columns->add(name, [pick](const Outcome& outcome) {
      const auto values = speeds(outcome);
      if (values.size() < 2) return Cell();
      return Cell(*pick(values.begin(), values.end()), 3);
    });
  };
  columns->add(to_string(Figure::kSpeed), [](const Outcome& outcome) {
    return cell_of(Figure::kSpeed, median_speed(outcome));
  });
  const bool several = std::ranges::any_of(
      outcomes,
      [](const Outcome& outcome) { return outcome.durations.size() > 1; });
  if (several) {
    using Values = std::vector<double>::const_iterator;
    spread("min samples/s",
           [](Values from, Values to) { return std::min_element(from, to); });
    spread("max samples/s",
           [](Values from, Values to) { return std::max_element(from, to); });
  }
  columns->add(to_string(Figure::kSpeedUp), [&](const Outcome& outcome) {
    return cell_of(Figure::kSpeedUp,
                   figure_of(Figure::kSpeedUp, outcome,
                             base_of(benchmark, outcome, outcomes)));
  });
  const bool simulated = std::ranges::any_of(
      outcomes,
      [](const Outcome& outcome) { return outcome.timeline.has_value(); });
  if (!simulated) return;
  columns->add("bubble %", [](const Outcome& outcome) {
    if (!outcome.timeline) return Cell();
    return Cell(100 * outcome.timeline->bubble_fraction, 1);
  });
}

void add_memory_by_kind(Columns* columns) {
  for (const Figure figure : {Figure::kParameters, Figure::kLastingBytes,
                              Figure::kActivationBytes, Figure::kTotalBytes}) {
    columns->add(to_string(figure), [figure](const Outcome& outcome) {
      return cell_of(figure, figure_of(figure, outcome, nullptr));
    });
  }
  columns->add("largest device", [](const Outcome& outcome) {
    const auto largest =
        std::ranges::max_element(outcome.memory, {}, &DeviceMemory::peak);
    return Cell::bytes(largest == outcome.memory.end()
                           ? std::nullopt
                           : std::optional<int64_t>(largest->peak));
  });
}

void add_boundary(Columns* columns) {
  columns->add("copied in", [](const Outcome& outcome) {
    return Cell::bytes(sum(outcome, &DeviceMemory::boundary));
  });
}

void add_reserved(const std::vector<Outcome>& outcomes, Columns* columns) {
  if (std::ranges::none_of(outcomes, has_reserved)) return;
  columns->add("reserved", [](const Outcome& outcome) {
    return Cell::bytes(has_reserved(outcome) ? sum(outcome, reserved_of)
                                             : std::nullopt);
  });
}

void add_published(const Benchmark& benchmark, bool speed, Columns* columns) {
  for (size_t i = 0; i < benchmark.published.size(); ++i) {
    const auto& column = benchmark.published[i];
    if (is_speed(column.figure) != speed) continue;
    columns->add(column.name, [&, i](const Outcome& outcome) {
      const auto& published = outcome.experiment.published;
      return cell_of(column.figure,
                     i < published.size() ? published[i] : std::nullopt);
    });
  }
}

}  // namespace

bool tells_speed(const Benchmark& benchmark, Mode mode) {
  return benchmark.table_kind != TableKind::kMemory && mode != Mode::kDryRun;
}

Table outcome_table(const Benchmark& benchmark, Mode mode,
                    const std::vector<Outcome>& outcomes) {
  Columns columns(outcomes);
  const bool speed = tells_speed(benchmark, mode);
  add_plan(benchmark, mode, &columns);
  if (speed) {
    add_speeds(benchmark, outcomes, &columns);
    if (mode == Mode::kMeasure) {
      columns.add("peak memory", [](const Outcome& outcome) {
        return Cell::bytes(sum(outcome, &DeviceMemory::peak));
      });
    }
  } else {
    add_memory_by_kind(&columns);
    if (mode == Mode::kDryRun) add_boundary(&columns);
  }
  add_reserved(outcomes, &columns);
  add_published(benchmark, speed, &columns);
  Table table = columns.take();
  table.title = benchmark.title;
  return table;
}

Table plan_table(const Benchmark& benchmark, Mode mode,
                 const std::vector<Outcome>& outcomes) {
  Columns columns(outcomes);
  columns.add("partitions", [](const Outcome& outcome) {
    return Cell(outcome.experiment.partitions);
  });
  add_plan(benchmark, mode, &columns);
  Table table = columns.take();
  table.title = benchmark.title + " (the plan; nothing was run)";
  return table;
}

std::string balance_text(const std::vector<int64_t>& balance) {
  if (balance.size() <= 16) return absl::StrJoin(balance, ",");
  std::vector<std::string> runs;
  for (auto from = balance.begin(); from != balance.end();) {
    const auto to = std::find_if(
        from, balance.end(), [&](int64_t layers) { return layers != *from; });
    runs.push_back(std::to_string(*from) +
                   (to - from > 1 ? " x " + std::to_string(to - from) : ""));
    from = to;
  }
  return absl::StrJoin(runs, ", ");
}

}  // namespace gpipe::benchmarks
