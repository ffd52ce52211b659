// Runs the fuzz target that it is linked with, without libFuzzer. First it
// tries each file of a folder, then random changes of these files. The same
// seed gives the same inputs.
//
//   text_fuzz --runs=1000000 --seed=1 --dictionary=text_fuzz.dict FOLDER
//
// If an input ends the process or takes more than 20 s, the input is written to
// a file. The exit status is also 1 if nearly no input was parsed, or nearly
// none was refused: then only one half of the parser was tested.
#include <fcntl.h>
#include <gflags/gflags.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/testing/fuzz/check.h"
#include "gpipe/testing/fuzz/corpus.h"
#include "gpipe/testing/fuzz/mutate.h"
#include "gpipe/testing/fuzz/mutator.h"

DEFINE_int64(runs, 1000000, "Number of inputs to generate and try.");
DEFINE_uint64(seed, 1, "Seed; the same seed gives the same inputs.");
DEFINE_string(dictionary, "",
              "File with words to insert, in libFuzzer's format.");

extern "C" {
// Defined by the target.
int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size);
__attribute__((weak)) std::size_t LLVMFuzzerCustomMutator(uint8_t* data,
                                                          std::size_t size,
                                                          std::size_t max_size,
                                                          unsigned int seed);
// Defined by ASan: sets the function to call before it ends the process.
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());
}

namespace {

constexpr std::size_t kLongest = std::size_t{1} << 16;
constexpr int kSlowSeconds = 20;

std::optional<gpipe::testing::Mutator> mutator;

// The input that is being tried, for the handlers below.
const std::vector<uint8_t>* input = nullptr;
std::string left_in;  // path of the file for a failing input

// Writes the input to a file. Calls only functions that a signal handler may
// call.
void leave_input() {
  if (input == nullptr) return;
  const auto say = [](const char* text) {
    return write(STDERR_FILENO, text, std::strlen(text));
  };
  const int file = open(left_in.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
  const bool written = file >= 0 && write(file, input->data(), input->size()) ==
                                        static_cast<ssize_t>(input->size());
  say(written ? "\nthe input is in " : "\nthe input could not be written to ");
  say(left_in.c_str());
  say("\n");
  input = nullptr;
}

extern "C" void on_signal(int number) {
  leave_input();
  // The signal then has the same effect as without a handler.
  std::signal(number, SIG_DFL);
  std::raise(number);
}

void install_handlers() {
  const char* const folder = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  left_in = std::string(folder ? folder : ".") + "/failed_input";
  std::signal(SIGABRT, on_signal);
  std::signal(SIGALRM, on_signal);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(leave_input);
  } else {
    // The handler needs a stack of its own, because the other stack may have
    // overflowed.
    static char stack[1 << 16];
    const stack_t other = {stack, 0, sizeof stack};
    sigaltstack(&other, nullptr);
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK;
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE}) {
      sigaction(number, &action, nullptr);
    }
  }
}

struct Totals {
  int64_t runs = 0;
  int64_t bytes = 0;
  std::size_t longest = 0;
};

void run(const std::string& bytes, Totals& totals) {
  // alarm() is a system call, so it is not called for each input.
  if (totals.runs % 1024 == 0) alarm(kSlowSeconds);
  // The copy has no spare memory at its end, so that ASan detects reads beyond
  // it.
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  input = &exact;
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  input = nullptr;
  ++totals.runs;
  totals.bytes += static_cast<int64_t>(exact.size());
  totals.longest = std::max(totals.longest, exact.size());
}

std::string next() {
  if (LLVMFuzzerCustomMutator == nullptr) {
    std::string bytes = mutator->pick();
    mutator->change(bytes, kLongest);
    return bytes;
  }
  static std::vector<uint8_t> room(kLongest);  // new memory costs time
  const std::string& seed = mutator->pick();
  const std::size_t size = std::min(seed.size(), kLongest);
  std::copy_n(seed.begin(), size, room.begin());
  const std::size_t changed = LLVMFuzzerCustomMutator(
      room.data(), size, kLongest,
      static_cast<unsigned int>(mutator->below(UINT32_MAX)));
  return {room.begin(), room.begin() + static_cast<std::ptrdiff_t>(changed)};
}

}  // namespace

// Replaces libFuzzer's function for the target's own mutator.
extern "C" std::size_t LLVMFuzzerMutate(uint8_t* data, std::size_t size,
                                        std::size_t max_size) {
  std::string bytes(data, data + size);
  mutator->change(bytes, max_size);
  std::copy(bytes.begin(), bytes.end(), data);
  return bytes.size();
}

int main(int argc, char** argv) {
  using gpipe::testing::fuzz_counts;
  gflags::SetUsageMessage("runs a fuzz target on changed inputs");
  gflags::ParseCommandLineFlags(&argc, &argv, /*remove_flags=*/true);
  if (argc != 2) {
    std::cerr << argv[0] << ": expected a folder with inputs\n";
    return 1;
  }
  gpipe::testing::FuzzCorpus corpus;
  corpus.seeds = gpipe::testing::read_corpus(argv[1]);
  if (!FLAGS_dictionary.empty()) {
    corpus.words = gpipe::testing::read_dictionary(FLAGS_dictionary);
  }
  mutator.emplace(corpus, FLAGS_seed);
  install_handlers();

  const auto start = std::chrono::steady_clock::now();
  Totals totals;
  for (const std::string& bytes : corpus.seeds) run(bytes, totals);
  for (int64_t k = 0; k < FLAGS_runs; ++k) run(next(), totals);
  alarm(0);
  const std::chrono::duration<double> time =
      std::chrono::steady_clock::now() - start;

  const auto [parsed, refused] = fuzz_counts();
  std::cout << totals.runs << " inputs (" << corpus.seeds.size()
            << " of the corpus), " << totals.bytes
            << " bytes in all, the longest " << totals.longest << ", in "
            << std::fixed << std::setprecision(1) << time.count()
            << " s; parsed " << parsed << ", refused " << refused << "\n";
  const int64_t few = FLAGS_runs / 1000;
  if (parsed < few || refused < few) {
    std::cerr << "fewer than " << few << " of one kind: the corpus and the "
              << "target's mutator should produce both\n";
    return 1;
  }
}
