#include "training/program/generate_run.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <charconv>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "balancing/partition.h"
#include "gpipe/base/program.h"
#include "gpipe/eval_scope.h"
#include "gpipe/meta.h"
#include "gpipe/schedule.h"
#include "training/program/cut.h"
#include "training/program/engine.h"
#include "training/program/initial_weights.h"
#include "training/program/lora_setup.h"
#include "training/program/make_task.h"
#include "training/program/model_source.h"
#include "training/program/precision.h"
#include "training/program/run_flags.h"
#include "training/program/same_flags.h"

namespace gpipe::train_program {
namespace {

// Returns the tokens in a list such as "5,17" or "5 17".
Tokens parse_tokens(const std::string& flag, absl::string_view list) {
  Tokens tokens;
  for (const absl::string_view word :
       absl::StrSplit(list, absl::ByAnyChar(", \t\r"), absl::SkipEmpty())) {
    int64_t token = 0;
    const auto [end, error] =
        std::from_chars(word.data(), word.data() + word.size(), token);
    TORCH_CHECK_VALUE(
        error == std::errc() && end == word.data() + word.size(), flag, ": '",
        std::string(word),
        "' is no number of a token; "
        "tools/tokenize_text.py --encode turns a text into numbers");
    tokens.push_back(token);
  }
  return tokens;
}

std::vector<Tokens> parse_lists(const std::string& flag,
                                const std::string& lists, char between) {
  std::vector<Tokens> all;
  for (const absl::string_view each :
       absl::StrSplit(lists, between, absl::SkipWhitespace())) {
    all.push_back(parse_tokens(flag, each));
  }
  return all;
}

// The tokens of a text, each a byte.
class Bytes {
 public:
  explicit Bytes(std::string vocabulary) : vocabulary_(std::move(vocabulary)) {}

  Tokens encode(const std::string& flag, const std::string& text) const {
    Tokens tokens;
    for (const char c : text) {
      const auto place = vocabulary_.find(c);
      TORCH_CHECK_VALUE(place != std::string::npos, flag, "=", text,
                        ": the character '", c,
                        "' is not in the text of --data_dir");
      tokens.push_back(static_cast<int64_t>(place));
    }
    return tokens;
  }

  std::string decode(const Tokens& tokens) const {
    std::string text;
    for (const int64_t each : tokens) text += vocabulary_.at(each);
    return text;
  }

 private:
  const std::string vocabulary_;
};

std::vector<Tokens> read_prompts(const GenerateRun& run, const Bytes* bytes) {
  TORCH_CHECK_VALUE(bytes || run.prompt.empty(), "--prompt=", run.prompt,
                    " is a text, which needs --data_dir with the text that the "
                    "model was trained on; use --prompt_tokens");
  std::vector<Tokens> prompts =
      parse_lists("--prompt_tokens", run.prompt_tokens, ';');
  if (!run.prompt.empty()) {
    prompts.push_back(bytes->encode("--prompt", run.prompt));
  }
  if (!run.prompts.empty()) {
    std::ifstream file(run.prompts);
    TORCH_CHECK_VALUE(file, "--prompts=", run.prompts, " cannot be read");
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const auto more = parse_lists("--prompts=" + run.prompts, text, '\n');
    prompts.insert(prompts.end(), more.begin(), more.end());
  }
  TORCH_CHECK_VALUE(!prompts.empty(),
                    "there is no prompt; use --prompt_tokens or --prompts");
  TORCH_CHECK_VALUE(run.samples > 0, "--samples=", run.samples,
                    ": must be at least 1");
  std::vector<Tokens> all;
  for (const Tokens& each : prompts) {
    all.insert(all.end(), run.samples, each);
  }
  return all;
}

// The model, and how each process makes its own layers.
struct LoadedModel {
  torch::nn::Sequential layers;
  LayerBuilder make;  // not set if `layers` has values
};

LoadedModel load_model(const Options& options, ModelSource& source,
                       const std::function<torch::nn::Sequential()>& make,
                       const PrintLine& say, FlagValues& flags) {
  const ExportedFile* const file = source.file();
  const bool reads_parts = options.distributed && file;
  LoadedModel model;
  {
    std::optional<MetaGuard> meta;
    if (reads_parts) meta.emplace();
    model.layers = make();
  }
  std::function<void(ExportedModel&)> load_part;
  bool reads_weights = true;  // from the exported program
  if (!options.weights.empty()) {
    InitialWeights loaded = load_initial_weights(
        model.layers, source, options.weights, options.weights_skip,
        options.weights_entry, options.weights_dtype);
    say(loaded.line);
    flags["--weights"] = "of checksum " + std::to_string(loaded.checksum);
    load_part = std::move(loaded.load_part);
    reads_weights = !loaded.sets_all;
  }
  precision_of(options.precision).convert(model.layers);
  flags["--adapter"] =
      "of checksum " + std::to_string(adapter_checksum(options));
  // If the layers have no values, only names and shapes are compared.
  add_adapters(model.layers, options);
  load_adapter(model.layers, options, /*whole=*/true);
  if (reads_parts) {
    model.make =
        adapted_layers(*file, reads_weights, std::move(load_part), options);
  }
  return model;
}

// Returns the flags that must be equal in all processes.
FlagValues flags_of(const GenerateRun& run, const ModelSource& source,
                    const std::vector<Tokens>& prompts) {
  const GenerateOptions& options = run.options;
  const auto text = [](const auto& value) { return absl::StrCat(value); };
  FlagValues flags = {
      {"--model", source.description()},
      {"--max_tokens", text(options.max_tokens)},
      {"--in_flight", text(options.in_flight)},
      {"--temperature", text(options.sampling.temperature)},
      {"--top_k", text(options.sampling.top_k)},
      {"--top_p", text(options.sampling.top_p)},
      {"--seed", text(options.seed)},
      {"--eos", run.eos},
      {"--stop", run.stop},
  };
  for (const Tokens& each : prompts) {
    flags["the prompts"] += absl::StrJoin(each, ",") + ";";
  }
  if (const ExportedFile* const file = source.file()) {
    flags["--model"] +=
        ", weights of checksum " + std::to_string(file->weights_checksum());
  }
  return flags;
}

// Returns the layers per partition with the most even bytes of weights, or
// those of Options::balance.
std::vector<int64_t> balance_of(const Options& options,
                                const torch::nn::Sequential& layers,
                                int64_t partitions) {
  const auto count = static_cast<int64_t>(layers->size());
  if (auto listed = listed_balance(options, partitions, count, "partitions")) {
    return *std::move(listed);
  }
  TORCH_CHECK_VALUE(partitions <= count, partitions,
                    " partitions are more than the model's ", count,
                    " layers; use fewer --partitions");
  std::vector<double> bytes;
  for (const auto& layer : *layers) {
    double sum = 0;
    for (const at::Tensor& each : layer.ptr()->parameters()) {
      sum += static_cast<double>(each.nbytes());
    }
    bytes.push_back(sum);
  }
  return balancing::balance_cost(bytes, partitions);
}

}  // namespace

void run_generate(const Options& given, const GenerateRun& run,
                  const PrintLine& print, const PrintLine& say) {
  const Options options = with_adapter_options(given);
  std::unique_ptr<Task> task;
  std::unique_ptr<ModelSource> own;
  std::optional<Bytes> bytes;
  if (options.data_dir.empty()) {
    load_operators(options.operators);
    own = std::make_unique<ModelSource>(
        options.model, exported_options(options).concatenates(false),
        FileUse::kGeneration);
    TORCH_CHECK_VALUE(own->is_file(), "--model=", options.model,
                      " needs --data_dir, the text that it was trained on");
  } else {
    task = make_task(options);
    TORCH_CHECK_VALUE(!task->vocabulary().empty(),
                      "--data_dir=", options.data_dir, " is no text");
    bytes.emplace(task->vocabulary());
  }
  ModelSource& source = task ? task->source() : *own;
  const ExportedFile* const file = source.file();
  GenerateOptions all = run.options;
  all.ends = parse_tokens("--eos", run.eos);
  all.stops = bytes && !run.stop.empty()
                  ? std::vector<Tokens>{bytes->encode("--stop", run.stop)}
                  : parse_lists("--stop", run.stop, ';');
  all.slides = !file;
  const auto prompts = read_prompts(run, bytes ? &*bytes : nullptr);
  TokenModel model{
      file ? TokenInputs(file->signature()) : TokenInputs(options.length), 0,
      nullptr, nullptr};
  model.vocabulary = file ? file->signature().outputs[0].largest.back()
                          : static_cast<int64_t>(task->vocabulary().size());

  const RunProcesses processes(options);
  const auto say_once = [&](const std::string& line) {
    if (processes.rank() == 0) say(line);
  };
  TORCH_CHECK_VALUE(options.data_parallel == 1,
                    "--data_parallel=", options.data_parallel,
                    ": generation uses one replica");
  torch::manual_seed(options.seed);
  FlagValues flags = flags_of(run, source, prompts);
  LoadedModel loaded = load_model(
      options, source, [&] { return task ? task->model() : source.make({}); },
      say_once, flags);
  check_same_in_all(processes, flags);
  Cut cut;
  const int64_t partitions =
      options.distributed ? processes.ranks() : options.partitions;
  cut.balance = balance_of(options, loaded.layers, partitions);
  cut.checkpoint = Checkpoint::kNever;
  cut.schedule = fill_drain(static_cast<int>(partitions), 1);
  Engine engine(processes, std::move(loaded.layers), loaded.make, cut, options);
  say_once("layers per partition: " + absl::StrJoin(cut.balance, ","));

  const EvalScope scope(engine.module());
  const auto autocast =
      precision_of(options.precision).scope(engine.module().device().type());
  model.forward = [&](const std::vector<Sample>& parts,
                      const std::vector<int64_t>& sequences) {
    if (model.inputs.has_cache()) {
      source.exported()->use_buffer_sets(sequences);
    }
    return engine.forward(parts);
  };
  model.exchange = [&](const std::string& mine) {
    return engine.all_gather(mine);
  };
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Tokens> results = generate(model, prompts, all);
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  std::size_t tokens = 0;
  for (std::size_t k = 0; k < results.size(); ++k) {
    tokens += results[k].size() - prompts[k].size();
    if (processes.rank() > 0) continue;
    print(bytes ? bytes->decode(results[k]) : absl::StrJoin(results[k], " "));
  }
  say_once(absl::StrFormat("%d tokens in %.2f s, %.1f per second", tokens,
                           seconds.count(),
                           static_cast<double>(tokens) / seconds.count()));
}

}  // namespace gpipe::train_program
