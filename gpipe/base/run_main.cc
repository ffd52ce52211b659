#include "gpipe/base/run_main.h"

#include <c10/util/Exception.h>

#include <iostream>
#include <stdexcept>

#include "gpipe/base/program.h"

namespace gpipe {

std::string error_text(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch ? of_torch->what_without_backtrace() : error.what();
}

bool is_of_user(const std::exception& error) {
  return dynamic_cast<const c10::ValueError*>(&error) ||
         dynamic_cast<const c10::IndexError*>(&error) ||
         dynamic_cast<const std::invalid_argument*>(&error);
}

int run_main(int argc, char** argv, const std::string& name,
             const std::string& usage, const std::string& folder,
             const std::function<void()>& body, int failed) {
  try {
    begin_program();
    if (!read_flags(&argc, &argv, usage, folder.c_str())) return 0;
    TORCH_CHECK_VALUE(argc == 1, argv[1], ": options are --name=value");
    body();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << name << ": " << error_text(error) << std::endl;
    return is_of_user(error) ? 1 : failed;
  }
}

}  // namespace gpipe
