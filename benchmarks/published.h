// Published figures beside simulated ones.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace gpipe::benchmarks {

// One figure of a publication, and the same figure from gpipe's simulator.
struct PublishedFigure {
  std::string setting;  // for example "1.5B, 8 ranks, 24 micro-batches"
  std::string name;     // for example the schedule
  double theirs = 0, ours = 0;
};

// The figures of one table of a publication.
struct Comparison {
  std::string title;     // what the figures are
  std::string source;    // the publication and its table
  std::string settings;  // the assumptions of the simulation
  std::string why;       // the reason for the deviations
  std::vector<PublishedFigure> figures;
};

// Prints the comparison: title, source and settings, a table with a row per
// figure, the largest deviation, and its reason.
std::ostream& operator<<(std::ostream& stream, const Comparison& comparison);

// Returns the largest |ours - theirs|.
double largest_deviation(const Comparison& comparison);

// The comparisons, each in a file of its own. Threads: pure functions.
Comparison zero_bubble_rates();     // arXiv 2401.10241, Tables 5 and 9
Comparison zero_bubble_formulas();  // arXiv 2401.10241, Table 2
Comparison dual_pipe_formulas();    // deepseek-ai/DualPipe, README
Comparison controllable_memory();   // sail-sg, README; arXiv 2405.15362
Comparison gpipe_tpus();            // arXiv 1811.06965, Table 2
Comparison gpipe_gpus();            // arXiv 1811.06965, Table 3
Comparison torchtitan();            // torchtitan, llama3_h100_202412, Table 5

}  // namespace gpipe::benchmarks
