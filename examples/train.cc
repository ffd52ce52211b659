// Trains any model of models/, or one that Python's torch.export.save wrote, on
// your data or on generated data. Can resume, evaluate, log and trace, in one
// process or several. See --help.
//
//   ./bazelw run //examples:train -- --model=unet --data_dir=/folder
#include <iostream>
#include <string>

#include "training/program/options.h"
#include "training/program/run.h"

int main(int argc, char** argv) {
  namespace program = gpipe::train_program;
  return program::run_program(
      argc, argv, "train", "trains a model through a pipeline; see --help",
      [] { program::print_help(std::cout); },
      [] {
        return program::run(
            program::options_of_flags(),
            [](const std::string& line) { std::cout << line << std::endl; });
      });
}
