#include "trainer/meet.h"

#include "trainer/local_engine.h"
#include "trainer/process_engine.h"

namespace gpipe::trainer {

std::unique_ptr<Meeting> meet(const EngineOptions& options) {
  return options.distributed ? meet_processes(options) : meet_alone(options);
}

}  // namespace gpipe::trainer
