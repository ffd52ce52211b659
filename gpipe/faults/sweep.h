// Fails one operation of a step after another.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpipe/faults/trial.h"
#include "gpipe/testing/fail_nth.h"

namespace gpipe::faults {

struct Sweep {
  int64_t failed = 0;    // operations, one per step
  int64_t thrown = 0;    // steps that have thrown
  int64_t absorbed = 0;  // the others: somebody could do without
  int64_t in_cells = 0;  // operations of cells
  // Of the steps that have thrown: without a place.
  int64_t unnamed = 0;
  // Should be none. The first: operations of cells, with another place or
  // none.
  int64_t misnamed = 0, leaks = 0, wrong = 0;

  void operator+=(const Sweep& other);
  // By a line each.
  static std::vector<std::string> header();
  std::vector<std::string> row(const std::string& name) const;
};

// What is done after each step, whether it has thrown or not; returns what has
// gone wrong only there, such as what a device has failed at meanwhile.
using Settle = std::function<std::string()>;

// Fails every third operation of a step, from 0, 1 or 2 on in turn, or every
// one with GPIPE_THOROUGH=1.
//
// Reports what should not be as failures of the test, with the number of the
// operation. The trial is one_at_a_time, so that they have an order.
// `late`: the error may come up at a later operation, so that its place is
// another one; see also Trial::residue().
Sweep sweep(Trial& trial, testing::FailNth& failing, const Settle& settle,
            bool late = false);

}  // namespace gpipe::faults
