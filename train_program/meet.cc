#include "train_program/meet.h"

#include "train_program/local_engine.h"
#include "train_program/process_engine.h"

namespace gpipe::trainer {

std::unique_ptr<Meeting> meet(const EngineOptions& options) {
  return options.distributed ? meet_processes(options) : meet_alone(options);
}

}  // namespace gpipe::trainer
