// A whole training run, from options to exit code.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "gpipe/pipeline_module.h"
#include "training/program/options.h"
#include "training/program/reports.h"
#include "training/program/task.h"

namespace gpipe::train_program {

// Exit codes.
constexpr int kDone = 0;
constexpr int kWrongFlags = 1;  // a flag or the data is wrong
constexpr int kFailed = 2;
constexpr int kNotFinite = 3;  // a loss or a gradient is NaN or infinite
constexpr int kSignal = 128;   // plus the number of the signal

// A function that is called after each evaluation, in all processes, with the
// pipeline at that step.
using OnEvaluation = std::function<void(const Evaluation&, PipelineModule&)>;

// Runs a training run and returns its exit code. Creates the task, connects the
// processes, builds and partitions the model, resumes an earlier run in
// Options::run_dir, and trains. `print`, `on_evaluation`: see Loop.
//
// Seeds LibTorch's default generators. With Options::deterministic, changes
// LibTorch's global settings.
//
// Throws c10::ValueError or std::invalid_argument if the options and the data
// do not fit, and what training throws.
int run(const Options& options, const Print& print);

// Does the same with a given task.
int run(const Options& options, Task& task, const Print& print,
        const OnEvaluation& on_evaluation = nullptr);

// Runs the main() of a program with the flags of a training run, and returns
// its exit code: that of `body`, or kDone after `print_help` if --help is
// given, or that of an exception, whose text it prints on the standard error.
// Paths are relative to the folder where the user is
// (gpipe/base/program.h).
//
// `name`: the program's name, for errors. `usage`: a line for --helpfull.
int run_program(int argc, char** argv, const std::string& name,
                const std::string& usage,
                const std::function<void()>& print_help,
                const std::function<int()>& body);

}  // namespace gpipe::train_program
