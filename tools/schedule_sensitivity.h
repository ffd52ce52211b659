// What //tools:schedule --sensitivity prints and draws. All errors are
// std::invalid_argument.
#pragma once

#include <string>
#include <vector>

#include "gpipe/schedule.h"
#include "gpipe/simulation.h"

// Returns the disturbances in the flags --rank_factors, --jitter, --seed and
// --outage.
gpipe::Disturbances disturbances_of_flags();

// Returns whether --sensitivity is set.
bool wants_sensitivity();

// A schedule with its costs.
struct NamedSchedule {
  std::string name;
  gpipe::Schedule schedule;
  gpipe::Costs costs;
};

// Prints a table of slowdowns for each kind of disturbance, with a row per
// schedule. Returns a picture of the means, as SVG.
std::string print_sensitivity(const std::vector<NamedSchedule>& schedules);
