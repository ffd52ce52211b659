// The schedules and costs that the flags of //tools:schedule describe. All
// errors are std::invalid_argument.
#pragma once

#include <gflags/gflags.h>

#include <string>

#include "gpipe/schedule.h"
#include "gpipe/simulation.h"

DECLARE_string(csv);

// Returns the schedule in the file --csv, or that of this name if the flag is
// empty. Throws if the schedule is not possible.
gpipe::Schedule make_schedule(const std::string& name);

// Returns the costs of the stages of `schedule`.
gpipe::Costs costs_of(const gpipe::Schedule& schedule);
