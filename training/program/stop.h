// Signals that stop a program. The first one is only recorded, so that the
// program can end in order. The second one ends it at once.
#pragma once

namespace gpipe::train_program {

// A handler for SIGINT and SIGTERM, from construction to destruction. It only
// records the first signal. Later signals have their default effect. Only one
// object may exist in a process at any time.
class StopSignals {
 public:
  StopSignals();
  // Restores the previous handlers.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Returns the number of the recorded signal, or 0. Thread-safe.
  int received() const;

 private:
  void (*interrupt_)(int);
  void (*terminate_)(int);
};

}  // namespace gpipe::train_program
