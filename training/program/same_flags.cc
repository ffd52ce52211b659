#include "training/program/same_flags.h"

#include <c10/util/Exception.h>

#include <string>
#include <vector>

namespace gpipe::train_program {

void check_same_in_all(const RunProcesses& processes, const FlagValues& mine) {
  std::vector<FlagValues> all;
  for (const std::string& each : processes.all_gather(bytes_of(mine))) {
    all.push_back(parse_flag_values(each));
  }
  try {
    check_same_flags(all);
  } catch (const c10::Error&) {
    // All processes find the difference. This exchange waits until all have
    // arrived. Otherwise a process could fail first because another has ended.
    try {
      processes.all_gather("");
    } catch (const c10::Error&) {
      // Other processes have arrived and already ended.
    }
    throw;
  }
}

}  // namespace gpipe::train_program
