// The program that continues sequences of tokens or a text.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "training/program/generate.h"
#include "training/program/options.h"

namespace gpipe::train_program {

// The flags of the program beside those of a training run. Lists of tokens are
// numbers with "," or spaces between them.
struct GenerateRun {
  std::string prompt_tokens;  // lists of tokens with ";" between them
  std::string prompts;        // the path of a file with a list in each line
  std::string prompt;         // a text, if Options::data_dir is given
  int64_t samples = 1;        // sequences for each prompt
  std::string eos;            // a list: GenerateOptions::ends
  // GenerateOptions::stops: lists with ";" between them; with
  // Options::data_dir, a text.
  std::string stop;
  GenerateOptions options;
};

// A function that prints a line.
using PrintLine = std::function<void(const std::string& line)>;

// Loads the model of Options::model, Options::weights and Options::adapter, and
// continues the prompts with it, in one process or several. On the first
// process calls `print` with each sequence in the order of the prompts: its
// tokens, or a text if Options::data_dir is given, whose vocabulary is that of
// the model; and calls `say` with lines about the run.
//
// Layers are divided among the partitions so that the bytes of their weights
// are as even as possible, unless Options::balance is a list.
//
// Throws c10::ValueError or std::invalid_argument if the options do not fit,
// and what the model throws.
void run_generate(const Options& options, const GenerateRun& run,
                  const PrintLine& print, const PrintLine& say);

}  // namespace gpipe::train_program
