#include "tools/schedule_sensitivity.h"

#include <gflags/gflags.h>

#include <iostream>
#include <utility>

#include "gpipe/text/columns.h"
#include "gpipe/text/format.h"
#include "gpipe/text/lists.h"
#include "gpipe/text/refuse.h"
#include "gpipe/text/units.h"
#include "tools/line_chart.h"

DEFINE_string(rank_factors, "",
              "How many times as long each rank computes, a number per rank: "
              "1,1,2,1 makes rank 2 a straggler.");
DEFINE_double(jitter, 0,
              "Noise: the standard deviation of an action's time, as a "
              "fraction of it.");
DEFINE_uint64(seed, 0, "The seed of --jitter.");
DEFINE_string(outage, "",
              "A link that fails: from rank, to rank, start and length in "
              "seconds, for example 0,1,5,2.");
DEFINE_bool(sensitivity, false,
            "Print how much longer steps take with --stragglers, --jitters and "
            "--outages.");
DEFINE_string(stragglers, "1.1,1.25,1.5,2",
              "For --sensitivity: how many times as long one rank computes. "
              "Each rank in turn is the straggler.");
DEFINE_string(jitters, "0.05,0.1,0.2,0.4",
              "For --sensitivity: values of --jitter.");
DEFINE_int32(seeds, 8, "For --sensitivity: the number of seeds per jitter.");
DEFINE_string(outages, "0.01,0.05,0.1,0.2",
              "For --sensitivity: how long one link is down, from the middle "
              "of the step on, as a fraction of the undisturbed step. Each "
              "link in turn fails.");

namespace {

using gpipe::Slowdown;

// The slowdowns of all schedules by one kind of disturbance.
struct Part {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::pair<std::string, std::vector<Slowdown>>> rows;
};

void print(const Part& part) {
  std::cout << "\n" << part.title << "\n";
  std::vector<std::vector<std::string>> table = {{"schedule"}};
  for (const std::string& column : part.columns) table[0].push_back(column);
  for (const auto& [name, slowdowns] : part.rows) {
    table.push_back({name});
    for (const Slowdown& slowdown : slowdowns) {
      table.back().push_back(
          gpipe::format("%.3f / %.3f", slowdown.mean, slowdown.worst));
    }
  }
  std::cout << gpipe::columns_text(table, "lr");
}

gpipe::tools::LineChart chart_of(const Part& part) {
  gpipe::tools::LineChart chart{part.title, part.columns, {}};
  for (const auto& [name, slowdowns] : part.rows) {
    gpipe::tools::LineChart::Series series{name, {}};
    for (const Slowdown& slowdown : slowdowns) {
      series.values.push_back(slowdown.mean);
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

std::vector<std::string> percents(const std::vector<double>& fractions) {
  std::vector<std::string> texts;
  for (const double fraction : fractions) {
    texts.push_back(gpipe::percent_text(fraction));
  }
  return texts;
}

}  // namespace

gpipe::Disturbances disturbances_of_flags() {
  gpipe::Disturbances disturbances;
  disturbances.rank_factors =
      gpipe::parse_amounts("rank_factors", FLAGS_rank_factors);
  disturbances.jitter = FLAGS_jitter;
  disturbances.seed = FLAGS_seed;
  const auto outage = gpipe::parse_amounts("outage", FLAGS_outage);
  if (outage.empty()) return disturbances;
  if (outage.size() != 4) {
    gpipe::internal::refuse(
        "--outage=", FLAGS_outage, " has ", outage.size(),
        " numbers: give from rank, to rank, start and length in seconds");
  }
  const auto rank = [](double number) {
    const int rank = static_cast<int>(number);
    if (rank != number) {
      gpipe::internal::refuse("--outage: ", number, " is not a rank");
    }
    return rank;
  };
  disturbances.outages = {
      {rank(outage[0]), rank(outage[1]), outage[2], outage[3]}};
  return disturbances;
}

bool wants_sensitivity() { return FLAGS_sensitivity; }

std::string print_sensitivity(const std::vector<NamedSchedule>& schedules) {
  gpipe::SensitivityOptions options;
  options.stragglers = gpipe::parse_amounts("stragglers", FLAGS_stragglers);
  options.jitters = gpipe::parse_amounts("jitters", FLAGS_jitters);
  options.outages = gpipe::parse_amounts("outages", FLAGS_outages);
  options.seeds = FLAGS_seeds;
  Part stragglers{"one rank computes so many times as long",
                  gpipe::split_list(FLAGS_stragglers),
                  {}};
  Part jitters{
      "noise of so much of each action's time", percents(options.jitters), {}};
  Part outages{"one link is down for so much of the step",
               percents(options.outages),
               {}};
  for (const auto& [name, schedule, costs] : schedules) {
    gpipe::Sensitivity result = gpipe::sensitivity(schedule, costs, options);
    stragglers.rows.emplace_back(name, std::move(result.stragglers));
    jitters.rows.emplace_back(name, std::move(result.jitters));
    outages.rows.emplace_back(name, std::move(result.outages));
  }
  std::cout << "\nsteps take so many times as long (mean / worst)\n";
  std::vector<gpipe::tools::LineChart> charts;
  for (const Part* part : {&stragglers, &jitters, &outages}) {
    if (part->columns.empty()) continue;
    print(*part);
    charts.push_back(chart_of(*part));
  }
  return gpipe::tools::to_svg(charts);
}
