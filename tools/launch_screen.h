// The output of the ranks on the terminal of the launcher.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "gpipe/base/processes.h"
#include "tools/launch_flags.h"

// The launcher adds the number of a signal to this exit code.
constexpr int kSignal = 128;

// Writes all of `text`. Ends the launcher if its reader has ended.
void write_all(int fd, const std::string& text);

// Returns the rank of a process of this machine.
int rank_of(int local_rank);

// Prints the output of the ranks and remembers the last lines of stderr.
class Screen {
 public:
  // Prints a part of an unfinished line. The next output replaces it on a
  // terminal.
  void show(int local_rank, gpipe::Stream stream, std::string_view text);

  void write(int local_rank, gpipe::Stream stream, std::string_view line);

  // Returns the rank that this rank has called the cause of its failure on
  // stderr, as a gpipe::PeerError does; -1 if there is none.
  int rank_at_fault(int local_rank) const { return at_fault_[local_rank]; }

  // Returns the last lines of stderr.
  const std::deque<std::string>& last_lines(int local_rank) const {
    return last_lines_[local_rank];
  }

 private:
  void print(int local_rank, gpipe::Stream stream, std::string_view line,
             char end);

  bool shows_progress_ = false;  // since the last line
  std::vector<int> at_fault_ = std::vector<int>(FLAGS_nproc, -1);
  std::vector<std::deque<std::string>> last_lines_ =
      std::vector<std::deque<std::string>>(FLAGS_nproc);
};
