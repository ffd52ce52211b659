// Trains any model of models/, or one that Python's torch.export.save wrote, on
// your data or on generated data. Can resume, evaluate, log and trace, in one
// process or several. See --help.
//
//   ./bazelw run //examples:train -- --model=unet --data_dir=/folder
#include <c10/util/Exception.h>
#include <gflags/gflags.h>

#include <exception>
#include <iostream>
#include <string>

#include "gpipe/base/program.h"
#include "training/program/options.h"
#include "training/program/run.h"

DECLARE_bool(help);  // gflags' own

int main(int argc, char** argv) {
  namespace program = gpipe::train_program;
  try {
    gpipe::enter_working_directory();
    gflags::SetUsageMessage("trains a model through a pipeline; see --help");
    gflags::ParseCommandLineNonHelpFlags(&argc, &argv, /*remove_flags=*/true);
    if (FLAGS_help) {
      program::print_help(std::cout);
      return program::kDone;
    }
    gflags::HandleCommandLineHelpFlags();  // --helpfull, --version, ...
    TORCH_CHECK_VALUE(argc == 1, argv[1], ": options are --name=value");
    return program::run(
        program::options_of_flags(),
        [](const std::string& line) { std::cout << line << std::endl; });
  } catch (const std::exception& error) {
    const auto ending = program::ending_of(error);
    std::cerr << "train: " << ending.text << "\n";
    return ending.code;
  }
}
