#include "training/program/generate.h"

#include <ATen/Functions.h>
#include <absl/cleanup/cleanup.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "balancing/partition.h"
#include "gpipe/base/program.h"
#include "gpipe/base/text.h"
#include "gpipe/eval_scope.h"
#include "gpipe/schedule.h"
#include "training/data/random.h"
#include "training/program/cut.h"
#include "training/program/model_source.h"
#include "training/program/saved_run.h"
#include "training/program/step.h"
#include "training/program/weights.h"

namespace gpipe::train_program {

// ---- The inputs of a model

namespace {

constexpr char kMaskName[] = "attention_mask";

std::string list_of(const std::vector<ExportedTensor>& tensors) {
  return absl::StrJoin(tensors, ", ", [](std::string* text, const auto& each) {
    absl::StrAppend(text, each.name, " ", each.shape);
  });
}

// Returns the number of tokens that the caches hold: dimension 2 of keys and
// values, [rows, heads, tokens, width]; and the keys that masks can show.
int64_t cache_length(const ExportedSignature& signature) {
  int64_t length = std::numeric_limits<int64_t>::max();
  for (const ExportedTensor& each : signature.state) {
    if (each.largest.size() == 4 && each.largest[2] > 0 &&
        each.changed_in_part) {
      length = std::min(length, each.largest[2]);
    }
  }
  for (const ExportedTensor& each : signature.inputs) {
    if (each.name == kMaskName) length = std::min(length, each.largest.back());
  }
  return length;
}

}  // namespace

TokenInputs::TokenInputs(int64_t window)
    : inputs_{{Kind::kTokens, at::kLong, std::nullopt}}, limit_(window) {}

TokenInputs::TokenInputs(const ExportedSignature& signature, bool with_state) {
  const ExportedTensor* tokens = nullptr;
  const auto kind_of = [&](const ExportedTensor& each) {
    const std::size_t dimensions = each.sizes.size();
    if (each.dtype == at::kLong && dimensions == 1) return Kind::kPlaces;
    if (each.name == kMaskName) {
      if (dimensions == 4) return Kind::kCausalMask;
      if (dimensions == 2) return Kind::kMask;
    }
    if (each.dtype == at::kLong && dimensions == 2) {
      if (each.name == "position_ids") return Kind::kPlacesOfRows;
      if (!tokens) {
        tokens = &each;
        return Kind::kTokens;
      }
    }
    TORCH_CHECK_VALUE(
        false, "the program takes ", list_of(signature.inputs),
        ", but generation knows no value for ", each.name,
        "; export a program of the tokens alone, or with a cache_position, "
        "position_ids or an attention_mask");
  };
  for (const ExportedTensor& each : signature.inputs) {
    const Kind kind = kind_of(each);
    const bool is_mask = kind == Kind::kMask || kind == Kind::kCausalMask;
    inputs_.push_back({kind, each.dtype.value_or(at::kFloat),
                       is_mask ? each.sizes.back() : std::nullopt});
  }
  TORCH_CHECK_VALUE(tokens && signature.outputs.size() == 1 &&
                        signature.outputs[0].sizes.size() == 3,
                    "the program takes ", list_of(signature.inputs),
                    " and returns ", list_of(signature.outputs),
                    "; generation needs tokens, int64 [rows, tokens], and "
                    "logits, [rows, tokens, vocabulary]");
  TORCH_CHECK_VALUE(tokens->sizes[0].value_or(1) == 1, "the program takes ",
                    list_of(signature.inputs),
                    ", but each sequence is a row of its own; export it for 1 "
                    "row or with dynamic_shapes={0: torch.export.Dim(...)}");
  fixed_ = tokens->sizes[1].value_or(0);
  has_cache_ = with_state && !signature.state.empty();
  limit_ = has_cache_ ? cache_length(signature) : tokens->largest[1];
  TORCH_CHECK_VALUE(!has_cache_ || fixed_ <= 1, "the program takes ", fixed_,
                    " tokens and their places in each call; export it for 1 "
                    "token, or with a dynamic number");
}

at::Tensor TokenInputs::make(const Input& input,
                             const std::vector<int64_t>& tokens, int64_t first,
                             int64_t count, int64_t padded) const {
  const int64_t keys = input.keys.value_or(first + padded);
  switch (input.kind) {
    case Kind::kTokens: {
      std::vector<int64_t> row(tokens.begin() + first,
                               tokens.begin() + first + count);
      row.resize(padded);
      return at::tensor(row).unsqueeze(0);
    }
    case Kind::kPlaces:
      return at::arange(first, first + padded, at::kLong);
    case Kind::kPlacesOfRows:
      return at::arange(first, first + padded, at::kLong).unsqueeze(0);
    case Kind::kMask:
      return (at::arange(keys) < first + count).to(input.dtype).unsqueeze(0);
    case Kind::kCausalMask:
      break;
  }
  const at::Tensor sees =
      at::ones({1, 1, padded, keys}, at::TensorOptions(at::kBool)).tril(first);
  if (!c10::isFloatingType(input.dtype)) return sees.to(input.dtype);
  return at::zeros(sees.sizes(), input.dtype)
      .masked_fill_(sees.logical_not(), -INFINITY);
}

TokenInputs::Call TokenInputs::next(const std::vector<int64_t>& tokens,
                                    int64_t known) const {
  const auto size = static_cast<int64_t>(tokens.size());
  TORCH_CHECK_VALUE(size <= limit_, "the sequence has ", size,
                    " tokens, but the model takes at most ", limit_);
  const int64_t first = has_cache_ ? known : 0;
  const int64_t count = has_cache_ && fixed_ > 0 ? fixed_ : size - first;
  const int64_t padded = fixed_ > 0 ? fixed_ : count;
  Call call;
  call.tokens = first + count;
  call.last = count - 1;
  call.sample.input = make(inputs_[0], tokens, first, count, padded);
  for (std::size_t k = 1; k < inputs_.size(); ++k) {
    call.sample.further.push_back(
        make(inputs_[k], tokens, first, count, padded));
  }
  return call;
}

// ---- The next token

TokenSampler::TokenSampler(const SamplingOptions& options, uint64_t seed)
    : options_(options), random_(seed) {
  TORCH_CHECK_VALUE(
      options.temperature >= 0 && std::isfinite(options.temperature),
      "--temperature=", options.temperature, ": must be 0 or more");
  TORCH_CHECK_VALUE(options.top_k >= 0, "--top_k=", options.top_k,
                    ": must be 0 (all tokens) or more");
  TORCH_CHECK_VALUE(options.top_p > 0 && options.top_p <= 1,
                    "--top_p=", options.top_p,
                    ": must be above 0 and at most 1 (all tokens)");
  TORCH_CHECK_VALUE(
      options.temperature > 0 || (options.top_k == 0 && options.top_p == 1),
      "--top_k=", options.top_k, " and --top_p=", options.top_p,
      " choose among tokens to draw from, but none are drawn "
      "with --temperature=0");
}

int64_t TokenSampler::next(const at::Tensor& logits) {
  const at::Tensor values = logits.to(at::kDouble).contiguous();
  const double* const value = values.const_data_ptr<double>();
  const std::size_t size = values.numel();
  double most = -INFINITY;
  std::size_t best = 0;
  bool is_nan = false;
  for (std::size_t k = 0; k < size; ++k) {
    is_nan = is_nan || std::isnan(value[k]);
    if (value[k] > most) {
      most = value[k];
      best = k;
    }
  }
  TORCH_CHECK_VALUE(!is_nan && std::isfinite(most), "the largest of ", size,
                    " logits is ", is_nan ? NAN : most,
                    "; check the weights, or use another --precision");
  if (options_.temperature == 0) return static_cast<int64_t>(best);

  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  if (options_.top_k > 0 || options_.top_p < 1) {
    const auto kept =
        options_.top_k > 0 ? std::min<std::size_t>(options_.top_k, size) : size;
    std::partial_sort(order.begin(), order.begin() + kept, order.end(),
                      [&](std::size_t a, std::size_t b) {
                        return value[a] != value[b] ? value[a] > value[b]
                                                    : a < b;
                      });
    order.resize(kept);
  }
  std::vector<double> sums;  // of the probabilities, times a factor
  double sum = 0;
  for (const std::size_t k : order) {
    sum += std::exp((value[k] - most) / options_.temperature);
    sums.push_back(sum);
  }
  if (options_.top_p < 1) {
    const auto end =
        std::lower_bound(sums.begin(), sums.end(), options_.top_p * sum);
    sums.resize(std::min(sums.size(), std::size_t(end - sums.begin()) + 1));
  }
  const double drawn = random_.uniform() * sums.back();
  const auto found = std::upper_bound(sums.begin(), sums.end(), drawn);
  const auto place = std::min(found - sums.begin(),
                              static_cast<std::ptrdiff_t>(sums.size()) - 1);
  return static_cast<int64_t>(order[place]);
}

// ---- Sequences

namespace {

// A sequence that is generated.
struct Sequence {
  int64_t index;  // in the prompts
  Tokens tokens;
  int64_t known = 0;  // tokens that the model's cache has
  TokenSampler sampler;
};

void check(const TokenModel& model, const std::vector<Tokens>& prompts,
           const GenerateOptions& options) {
  check_at_least("max_tokens", options.max_tokens, 1);
  check_at_least("in_flight", options.in_flight, 1);
  const auto check_tokens = [&](const std::string& name, const Tokens& tokens) {
    for (const int64_t each : tokens) {
      TORCH_CHECK_VALUE(each >= 0 && each < model.vocabulary, name,
                        " has the token ", each, ", but the model has ",
                        model.vocabulary, " tokens, 0 to ",
                        model.vocabulary - 1);
    }
  };
  check_tokens("--eos", options.ends);
  for (const Tokens& each : options.stops) {
    TORCH_CHECK_VALUE(!each.empty(), "--stop has an empty list of tokens");
    check_tokens("--stop", each);
  }
  const int64_t limit = model.inputs.limit();
  for (std::size_t k = 0; k < prompts.size(); ++k) {
    const auto size = static_cast<int64_t>(prompts[k].size());
    TORCH_CHECK_VALUE(size > 0, "prompt ", k, " is empty");
    check_tokens(absl::StrCat("prompt ", k), prompts[k]);
    TORCH_CHECK_VALUE(
        options.slides || size <= limit, "prompt ", k, " has ", size,
        " tokens, but the model takes at most ", limit,
        "; use a shorter prompt, or export the model for more tokens");
    // The model does not read the last token.
    TORCH_CHECK_VALUE(options.slides || options.max_tokens <= limit - size + 1,
                      "prompt ", k, " has ", size,
                      " tokens and --max_tokens=", options.max_tokens,
                      " follow, but the model takes at most ", limit,
                      "; use --max_tokens=", limit - size + 1,
                      " or less, or export the model for more tokens");
  }
}

bool ends_with(const Tokens& tokens, std::size_t prompt, const Tokens& end) {
  return tokens.size() >= prompt + end.size() &&
         std::equal(end.rbegin(), end.rend(), tokens.rbegin());
}

bool has_ended(const Sequence& sequence, std::size_t prompt,
               const GenerateOptions& options) {
  const Tokens& tokens = sequence.tokens;
  return static_cast<int64_t>(tokens.size() - prompt) >= options.max_tokens ||
         std::find(options.ends.begin(), options.ends.end(), tokens.back()) !=
             options.ends.end() ||
         std::any_of(options.stops.begin(), options.stops.end(),
                     [&](const Tokens& each) {
                       return ends_with(tokens, prompt, each);
                     });
}

// Returns the call for a sequence, of its last tokens if it is too long.
TokenInputs::Call call_of(const TokenInputs& inputs, const Sequence& sequence) {
  const Tokens& tokens = sequence.tokens;
  const int64_t left_out = static_cast<int64_t>(tokens.size()) - inputs.limit();
  if (left_out <= 0) return inputs.next(tokens, sequence.known);
  auto call = inputs.next({tokens.begin() + left_out, tokens.end()}, 0);
  call.tokens += left_out;
  return call;
}

}  // namespace

std::vector<Tokens> generate(const TokenModel& model,
                             const std::vector<Tokens>& prompts,
                             const GenerateOptions& options) {
  check(model, prompts, options);
  TORCH_CHECK_VALUE(!options.slides || !model.inputs.has_cache(),
                    "a model with a cache cannot leave out its first tokens");
  const TokenSampler checked(options.sampling, 0);
  const absl::Cleanup forget = [&] {
    if (model.forget) model.forget();
  };
  std::vector<Tokens> results(prompts.size());
  std::vector<Sequence> flying;
  std::size_t begun = 0;
  while (true) {
    while (begun < prompts.size() &&
           static_cast<int64_t>(flying.size()) < options.in_flight) {
      const Tokens& prompt = prompts[begun];
      flying.push_back({static_cast<int64_t>(begun), prompt, 0,
                        TokenSampler(options.sampling,
                                     data::mix_seed(options.seed, begun))});
      ++begun;
    }
    if (flying.empty()) return results;
    std::vector<Sample> parts;
    std::vector<int64_t> sequences, lasts;
    std::vector<Sequence*> grows;  // those that get a token
    for (Sequence& each : flying) {
      TokenInputs::Call call = call_of(model.inputs, each);
      parts.push_back(std::move(call.sample));
      sequences.push_back(each.index);
      lasts.push_back(call.last);
      each.known = call.tokens;
      const auto size = static_cast<int64_t>(each.tokens.size());
      grows.push_back(each.known == size ? &each : nullptr);
    }
    const auto logits = model.forward(parts, sequences);
    if (std::count(grows.begin(), grows.end(), nullptr) ==
        static_cast<int64_t>(grows.size())) {
      continue;  // all are still reading their prompts
    }
    // The process with the last stage draws the tokens.
    std::ostringstream mine;
    for (std::size_t k = 0; logits && k < grows.size(); ++k) {
      if (!grows[k]) continue;
      mine << grows[k]->sampler.next((*logits)[k][0][lasts[k]]) << " ";
    }
    const std::vector<std::string> all = model.exchange(mine.str());
    const auto drawn = std::find_if(
        all.begin(), all.end(), [](const auto& each) { return !each.empty(); });
    std::istringstream stream(drawn == all.end() ? "" : *drawn);
    for (Sequence* each : grows) {
      if (!each) continue;
      int64_t token = 0;
      TORCH_CHECK(stream >> token, "no process has drawn the next token");
      each->tokens.push_back(token);
    }
    std::erase_if(flying, [&](Sequence& each) {
      const std::size_t prompt = prompts[each.index].size();
      if (each.tokens.size() == prompt || !has_ended(each, prompt, options)) {
        return false;
      }
      results[each.index] = std::move(each.tokens);
      return true;
    });
  }
}

// ---- A text that the model of a run writes

namespace {

constexpr int64_t kPrompt = 8;

// Returns the model of `engine`, which `source` made.
TokenModel token_model(Engine& engine, ModelSource& source, TokenInputs inputs,
                       int64_t vocabulary) {
  TokenModel model{std::move(inputs), vocabulary, nullptr, nullptr};
  const bool has_cache = model.inputs.has_cache();
  model.forward = [&engine, &source, has_cache, vocabulary](
                      const std::vector<Sample>& parts,
                      const std::vector<int64_t>& sequences) {
    if (has_cache) source.exported()->use_buffer_sets(sequences);
    auto logits = engine.forward(parts);
    if (!logits) return logits;
    for (at::Tensor& each : *logits) each = each.slice(-1, 0, vocabulary);
    return logits;
  };
  model.exchange = [&engine](const std::string& mine) {
    return engine.all_gather(mine);
  };
  if (has_cache) {
    model.forget = [&source] { source.exported()->use_buffer_sets({}); };
  }
  return model;
}

TokenInputs inputs_of(const ModelSource& source, const Options& options,
                      bool with_state) {
  return source.file() ? TokenInputs(source.file()->signature(), with_state)
                       : TokenInputs(options.length);
}

// Returns the inputs for sample_text(), which runs the model as an evaluation.
TokenInputs sample_inputs(const Task& task, const Options& options) {
  return inputs_of(task.source(), options, /*with_state=*/false);
}

}  // namespace

void check_sample(const Options& options, const Task& task) {
  TORCH_CHECK_VALUE(options.sample >= 0, "--sample=", options.sample,
                    ": must be 0 (none) or more");
  TORCH_CHECK_VALUE(options.sample == 0 || !task.vocabulary().empty(),
                    "--sample=", options.sample,
                    " needs a text, but --model=", options.model,
                    " is trained on other data; use --sample=0");
  if (options.sample > 0 && options.eval_every >= 0) {
    (void)sample_inputs(task, options);
  }
}

std::string sample_text(Engine& engine, Task& task, const Options& options,
                        const Precision& precision, int64_t step) {
  const std::string vocabulary = task.vocabulary();
  const TokenModel model =
      token_model(engine, task.source(), sample_inputs(task, options),
                  static_cast<int64_t>(vocabulary.size()));
  GenerateOptions generated;
  generated.max_tokens = options.sample;
  generated.sampling.temperature = 0.8;
  generated.seed = data::mix_seed(options.seed, 4, step);
  generated.slides = true;
  const Sample test = task.test_batch(0);
  // A line may be shorter, and padding, which has no target, is not written.
  const auto length = test.target[0].ge(0).sum().item<int64_t>();
  const at::Tensor row = test.input[0].slice(0, 0, std::min(kPrompt, length));
  const Tokens prompt(row.const_data_ptr<int64_t>(),
                      row.const_data_ptr<int64_t>() + row.numel());

  const EvalScope scope(engine.module());
  const auto autocast = precision.scope(engine.module().device().type());
  std::string text;
  const std::vector<Tokens> written = generate(model, {prompt}, generated);
  for (const int64_t each : written[0]) {
    text += vocabulary.at(each);
  }
  return text;
}

// ---- The program examples/generate.cc

namespace {

// Returns the tokens in a list such as "5,17" or "5 17".
Tokens parse_tokens(const std::string& flag, absl::string_view list) {
  Tokens tokens;
  const std::vector<absl::string_view> parts = absl::StrSplit(list, ',');
  for (const absl::string_view part : parts) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(part, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    TORCH_CHECK_VALUE(!words.empty() || parts.size() == 1, flag,
                      ": a number is missing beside a comma of '",
                      std::string(list), "'");
    for (const absl::string_view word : words) {
      const auto token =
          internal::read_number<int64_t>({word.data(), word.size()});
      TORCH_CHECK_VALUE(
          token, flag, ": '", std::string(word),
          "' is no number of a token; "
          "tools/tokenize_text.py --encode turns a text into numbers");
      tokens.push_back(*token);
    }
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
      // A byte from 0x80 on is a part of a UTF-8 character.
      TORCH_CHECK_VALUE(
          place != std::string::npos, flag, "=", text, ": ",
          (c & 0x80) ? absl::StrCat("the byte 0x",
                                    absl::Hex(static_cast<unsigned char>(c)))
                     : "the character " + internal::in_quotes({&c, 1}),
          " is not in the text of --data_dir");
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

// Returns each prompt once.
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
    std::error_code error;
    TORCH_CHECK_VALUE(
        file && !std::filesystem::is_directory(run.prompts, error),
        "--prompts=", run.prompts, " cannot be read");
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const auto more = parse_lists("--prompts=" + run.prompts, text, '\n');
    prompts.insert(prompts.end(), more.begin(), more.end());
  }
  TORCH_CHECK_VALUE(!prompts.empty(), "there is no prompt; use ",
                    bytes ? "--prompt, " : "", "--prompt_tokens or --prompts");
  check_at_least("samples", run.samples, 1);
  constexpr int64_t kMost = 1'000'000;
  TORCH_CHECK_VALUE(run.samples <= kMost, "--samples=", run.samples,
                    ": must be at most ", kMost);
  return prompts;
}

// Returns the flags that must be equal in all processes.
FlagValues flags_of(const GenerateRun& run, const ModelSource& source,
                    const std::vector<Tokens>& prompts) {
  const GenerateOptions& options = run.options;
  FlagValues flags = {
      {"--model", source.description()},
      {"--max_tokens", absl::StrCat(options.max_tokens)},
      {"--in_flight", absl::StrCat(options.in_flight)},
      {"--temperature", absl::StrCat(options.sampling.temperature)},
      {"--top_k", absl::StrCat(options.sampling.top_k)},
      {"--top_p", absl::StrCat(options.sampling.top_p)},
      {"--seed", absl::StrCat(options.seed)},
      {"--eos", run.eos},
      {"--stop", run.stop},
  };
  for (const Tokens& each : prompts) {
    flags["the prompts"] += absl::StrJoin(each, ",") + ";";
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
                    " layers; use fewer ",
                    options.distributed ? "processes" : "--partitions");
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
                  const Print& print, const Print& say) {
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
    (void)own->fitted(options);  // checks --precision
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
  std::vector<Tokens> repeated;  // each prompt --samples times
  for (const Tokens& each : prompts) {
    repeated.insert(repeated.end(), run.samples, each);
  }
  TokenInputs inputs = inputs_of(source, options, /*with_state=*/true);
  // A program may have more outputs than a text has characters.
  const int64_t vocabulary =
      task ? static_cast<int64_t>(task->vocabulary().size())
           : file->signature().outputs[0].largest.back();

  const RunProcesses processes(options);
  const auto say_once = [&](const std::string& line) {
    if (processes.rank() == 0) say(line);
  };
  for (const std::string& line : unused_flags(options, source)) say_once(line);
  if (!file && options.weights.empty()) {
    say_once("--weights is empty: the weights are random");
  }
  TORCH_CHECK_VALUE(options.data_parallel == 1,
                    "--data_parallel=", options.data_parallel,
                    ": generation uses one replica");
  torch::manual_seed(options.seed);
  const auto check_same = [&](const FlagValues& mine) {
    check_same_in_all(processes, mine);
  };
  check_same(flags_of(run, source, repeated));
  LoadedModel loaded = load_model(
      options, source, [&] { return task ? task->model() : source.make({}); },
      /*resumes=*/false, check_same, say_once);
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
  const TokenModel model =
      token_model(engine, source, std::move(inputs), vocabulary);
  check(model, prompts, all);  // generate() would count the copies, too
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Tokens> results = generate(model, repeated, all);
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  std::size_t tokens = 0;
  for (std::size_t k = 0; k < results.size(); ++k) {
    tokens += results[k].size() - repeated[k].size();
    if (processes.rank() > 0) continue;
    print(bytes ? bytes->decode(results[k]) : absl::StrJoin(results[k], " "));
  }
  say_once(absl::StrFormat("%d tokens in %.2f s, %.1f per second", tokens,
                           seconds.count(),
                           static_cast<double>(tokens) / seconds.count()));
}

}  // namespace gpipe::train_program
