#include "gpipe/program/flags.h"

#include <gflags/gflags.h>

DECLARE_bool(help);  // defined by gflags

namespace gpipe {

bool read_flags(int* argc, char*** argv, const std::string& usage,
                const char* folder) {
  gflags::SetUsageMessage(usage);
  gflags::ParseCommandLineNonHelpFlags(argc, argv, /*remove_flags=*/true);
  if (FLAGS_help) {
    gflags::ShowUsageWithFlagsRestrict((*argv)[0], folder);
    return false;
  }
  gflags::HandleCommandLineHelpFlags();  // handles --helpfull, --version, ...
  return true;
}

}  // namespace gpipe
