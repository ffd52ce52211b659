// Continues prompts with a model that Python's torch.export.save wrote, or that
// examples:train has trained on a text, in one process or several. See --help.
//
//   ./bazelw run //examples:generate -- --model=/folder/model.pt2
//       --prompt_tokens=1,2,3
#include "training/program/generate.h"

#include <absl/strings/str_split.h>
#include <gflags/gflags.h>

#include <iostream>
#include <string>
#include <vector>

#include "gpipe/base/program.h"
#include "training/program/options.h"
#include "training/program/run.h"

DEFINE_string(prompt_tokens, "",
              "Prompts as numbers of tokens: 5,17,200 or, for several prompts, "
              "5,17,200;9,8.");
DEFINE_string(prompts, "",
              "A file with the numbers of the tokens of a prompt in each "
              "line, as tools/tokenize_text.py --encode writes them. Empty "
              "lines are skipped.");
DEFINE_string(prompt, "",
              "A prompt as text, for a model of characters. Needs --data_dir.");
DEFINE_int64(samples, 1, "Number of sequences for each prompt.");
DEFINE_int64(max_tokens, 64, "Number of tokens that follow a prompt, at most.");
DEFINE_string(eos, "",
              "Tokens after which a sequence ends, such as 2 or 2,32.");
DEFINE_string(stop, "",
              "Lists of tokens after which a sequence ends: 13,13;50. With "
              "--data_dir: a text.");
DEFINE_int64(in_flight, 4,
             "Number of sequences that are generated beside each other, as "
             "micro-batches.");
DEFINE_double(temperature, 0,
              "0: take the most likely token. Above 0: draw it; small numbers "
              "prefer likely tokens.");
DEFINE_int64(top_k, 0,
             "With --temperature above 0: draw among this many of the most "
             "likely tokens. 0: all.");
DEFINE_double(top_p, 1,
              "With --temperature above 0: draw among the most likely tokens "
              "whose probabilities add up to this number.");

namespace {

namespace program = gpipe::train_program;

std::vector<std::string> shared_flags() {
  return absl::StrSplit(
      "model weights weights_skip weights_entry weights_dtype adapter "
      "lora_wrapper operators "
      "max_crossing output data_dir length transformer_layers "
      "transformer_width transformer_heads precision seed partitions balance "
      "devices threads distributed transfers own_address timeout "
      "heartbeat_timeout",
      ' ');
}

constexpr char kIntroduction[] =
    R"(generate: continues sequences of tokens.

A model that Python's torch.export.save wrote, for numbers of tokens:
  generate --model=model.pt2 --prompt_tokens=1,2,3 --max_tokens=64
A model that train has trained on a text:
  generate --model=transformer --data_dir=book.txt --prompt='To be' \
      --weights=/runs/1/step-000000000500/model.safetensors --temperature=0.8
Two processes, each with half of the layers:
  launch --nproc=2 -- generate --distributed --model=model.pt2 ...

Prints the tokens or the text of each sequence, with its prompt, on the standard
output, and everything else on the standard error. docs/fine_tuning.md explains
how to export a model with or without a cache.

)";

void print_help() {
  std::cout << kIntroduction << gpipe::flags_text("examples/generate")
            << "\nThe model and the pipeline. --balance: a list of layers per "
               "partition; else the\nbytes of weights are as even as "
               "possible.\n";
  program::print_flags(std::cout, shared_flags());
}

int run_generate() {
  program::check_flags(shared_flags());
  const program::Options options = program::options_of_flags();
  program::GenerateRun run;
  run.prompt_tokens = FLAGS_prompt_tokens;
  run.prompts = FLAGS_prompts;
  run.prompt = FLAGS_prompt;
  run.samples = FLAGS_samples;
  run.eos = FLAGS_eos;
  run.stop = FLAGS_stop;
  run.options.max_tokens = FLAGS_max_tokens;
  run.options.in_flight = FLAGS_in_flight;
  run.options.sampling = {FLAGS_temperature, FLAGS_top_k, FLAGS_top_p};
  run.options.seed = options.seed;
  program::run_generate(
      options, run,
      [](const std::string& line) { std::cout << line << std::endl; },
      [](const std::string& line) { std::cerr << line << std::endl; });
  return program::kDone;
}

}  // namespace

int main(int argc, char** argv) {
  return program::run_program(argc, argv, "generate",
                              "continues sequences of tokens; see --help",
                              print_help, run_generate);
}
