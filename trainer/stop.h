// Ctrl-C: asks a program to come to an end; a second one ends it at once.
#pragma once

namespace gpipe::trainer {

// While in scope, SIGINT and SIGTERM are noted, each signal after the first one
// that comes does what it does by default. One at a time in a process.
class StopSignals {
 public:
  StopSignals();
  // What was done with these signals before is done again.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The number of the signal that has come; 0 if none has. Threads: any.
  int received() const;

 private:
  void (*interrupt_)(int);
  void (*terminate_)(int);
};

}  // namespace gpipe::trainer
