#include "benchmarks/harness/program.h"

#include <c10/util/Exception.h>
#include <gflags/gflags.h>
#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <iostream>
#include <stdexcept>

#include "gpipe/base/devices.h"
#include "gpipe/base/program.h"
#include "gpipe/base/run_main.h"
#include "gpipe/base/text.h"

namespace gpipe::benchmarks {
namespace {

bool asks_for_help(int argc, char** argv) {
  for (int i = 1; i < argc && std::strcmp(argv[i], "--") != 0; ++i) {
    for (const char* help : {"-h", "-help", "--help", "--helpshort"}) {
      if (std::strcmp(argv[i], help) == 0) return true;
    }
  }
  return false;
}

// Prints the names in lines of up to 80 characters.
void print_experiments(const std::vector<std::string>& names) {
  if (names.empty()) return;
  std::cout << "\nExperiments:\n";
  std::string line = " ";
  for (const auto& name : names) {
    if (line.size() > 1 && line.size() + 1 + name.size() > 79) {
      std::cout << line << "\n";
      line = " ";
    }
    line += " " + name + (name == names.back() ? "" : ",");
  }
  std::cout << line << "\n";
}

// Prints the help of `program`. The --help of gflags is not used: it shows the
// flags of every library and exits with 1.
void print_help(const Program& program) {
  std::cout << program.name << ": " << program.about << "\n\nExamples:\n";
  for (const auto& example : program.examples) {
    std::cout << "  ./bazelw run " << program.package << ":" << program.name
              << (example.empty() ? "" : " -- ") << example << "\n";
  }
  print_experiments(program.experiments);
  std::cout << "\nFlags:\n"
            << flags_text("benchmarks/")
            << "\nThe result goes to stdout, everything else to stderr. Also: "
               "--flagfile=FILE, the flags\nof glog (--v, --minloglevel, ...) "
               "and --helpfull, which lists them.\n"
               "Exit codes: 0 success, 1 a flag is wrong, 2 the run or a row "
               "of it failed.\n";
}

}  // namespace

std::string describe(const std::exception& error) {
  std::string text = error_text(error);
  text.resize(std::min(text.find('\n'), text.size()));
  return is_out_of_memory(error) ? "out of memory: " + text : text;
}

int run_program(int argc, char** argv, const Program& program,
                const std::function<int()>& body) {
  if (asks_for_help(argc, argv)) {
    print_help(program);
    return kOk;
  }
  FLAGS_logtostderr = true;
  gflags::SetUsageMessage(program.about);
  try {
    begin_program();
    // Prints a line and exits with 1 if a flag is unknown or has a value of a
    // wrong type.
    gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
    google::InitGoogleLogging(argv[0]);
    if (argc > 1) {
      internal::refuse("unexpected argument '", argv[1],
                       "': every option is a flag, --name=value; see --help");
    }
    return body();
  } catch (const std::invalid_argument& error) {
    std::cerr << program.name << ": " << error.what() << "\n";
    return kUsage;
  } catch (const c10::ValueError& error) {
    std::cerr << program.name << ": " << describe(error) << "\n";
    return kUsage;
  } catch (const std::exception& error) {
    std::cerr << program.name << ": " << describe(error) << "\n";
    return kFailed;
  }
}

}  // namespace gpipe::benchmarks
