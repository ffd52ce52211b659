// Makes the operations of a step fail, one after another.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpipe/base/instruments/fail_nth.h"
#include "gpipe/faults/trial.h"

namespace gpipe::faults {

// The counts of a sweep.
struct Sweep {
  int64_t failed = 0;    // operations that failed, one per step
  int64_t thrown = 0;    // steps that threw
  int64_t absorbed = 0;  // steps that did not need the operation
  int64_t in_cells = 0;  // failed operations in cells
  // Steps that threw an error without a place.
  int64_t unnamed = 0;
  // Should be 0. `misnamed` counts operations of cells whose error has another
  // place or none.
  int64_t misnamed = 0, leaks = 0, wrong = 0;

  void operator+=(const Sweep& other);
  // header() returns the column names of a table, row() a row of counts.
  static std::vector<std::string> header();
  std::vector<std::string> row(const std::string& name) const;
};

// A function that is called after each step, whether the step threw or not. It
// returns the errors that appear only then, such as an asynchronous failure of
// a device, or "".
using Settle = std::function<std::string()>;

// Makes every third operation of a step fail; successive sweeps begin at
// operation 0, 1 and 2. With GPIPE_THOROUGH=1 every operation fails.
//
// Reports defects as failures of the test, with the number of the operation.
// The trial must be one_at_a_time, so that operations have a fixed order.
// `late`: the error may appear at a later operation and then has another place.
// See also Trial::residue().
Sweep sweep(Trial& trial, instruments::FailNth& failing, const Settle& settle,
            bool late = false);

}  // namespace gpipe::faults
