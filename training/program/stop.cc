#include "training/program/stop.h"

#include <atomic>
#include <csignal>

namespace gpipe::train_program {
namespace {

std::atomic<int> signal_received{0};
static_assert(std::atomic<int>::is_always_lock_free, "for signal handlers");

void note(int number) {
  signal_received = number;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

StopSignals::StopSignals() {
  signal_received = 0;
  interrupt_ = std::signal(SIGINT, note);
  terminate_ = std::signal(SIGTERM, note);
}

StopSignals::~StopSignals() {
  std::signal(SIGINT, interrupt_);
  std::signal(SIGTERM, terminate_);
}

int StopSignals::received() const { return signal_received; }

}  // namespace gpipe::train_program
