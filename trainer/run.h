// A whole training run, from its options to its exit code.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "trainer/loop.h"
#include "trainer/options.h"
#include "trainer/task.h"

namespace gpipe::trainer {

// Makes the task, meets the other processes, builds and cuts the model, goes on
// from where a run in LoopOptions::run_dir was, and trains. Returns an exit
// code, see exit_code.h. `print`: see Loop.
//
// Seeds LibTorch's default generators, and with LoopOptions::deterministic
// changes LibTorch's global switches.
//
// Errors: c10::ValueError and std::invalid_argument for options and data that
// do not fit; what training throws.
int run(const Options& options, const Print& print);

// The same with a task of the caller's.
int run(const Options& options, Task& task, const Print& print);

// kWrongFlags for those that a user's flags or data cause, else kFailed; and
// the text without a backtrace.
struct Ending {
  int code;
  std::string text;
};
Ending ending_of(const std::exception& error);

}  // namespace gpipe::trainer
