#include "training/program/generate.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <utility>

#include "training/data/random.h"

namespace gpipe::train_program {
namespace {

// A sequence that is generated.
struct Sequence {
  int64_t index;  // in the prompts
  Tokens tokens;
  int64_t wanted;     // tokens of the whole sequence, at most
  int64_t known = 0;  // tokens that the model's cache has
  TokenSampler sampler;
};

void check(const TokenModel& model, const std::vector<Tokens>& prompts,
           const GenerateOptions& options) {
  TORCH_CHECK_VALUE(options.max_tokens > 0, "--max_tokens=", options.max_tokens,
                    ": must be at least 1");
  TORCH_CHECK_VALUE(options.in_flight > 0, "--in_flight=", options.in_flight,
                    ": must be at least 1");
  for (const Tokens& each : options.stops) {
    TORCH_CHECK_VALUE(!each.empty(), "--stop has an empty list of tokens");
  }
  const int64_t limit = model.inputs.limit();
  for (std::size_t k = 0; k < prompts.size(); ++k) {
    const auto size = static_cast<int64_t>(prompts[k].size());
    TORCH_CHECK_VALUE(size > 0, "prompt ", k, " is empty");
    for (const int64_t each : prompts[k]) {
      TORCH_CHECK_VALUE(each >= 0 && each < model.vocabulary, "prompt ", k,
                        " has the token ", each, ", but the model has ",
                        model.vocabulary, " tokens, 0 to ",
                        model.vocabulary - 1);
    }
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
  return static_cast<int64_t>(tokens.size()) >= sequence.wanted ||
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

std::vector<Tokens> generate(
    const TokenModel& model, const std::vector<Tokens>& prompts,
    const GenerateOptions& options,
    const std::function<void(int64_t, const Tokens&)>& on_end) {
  check(model, prompts, options);
  TORCH_CHECK_VALUE(!options.slides || !model.inputs.has_cache(),
                    "a model with a cache cannot leave out its first tokens");
  const TokenSampler checked(options.sampling, 0);
  std::vector<Tokens> results(prompts.size());
  std::vector<Sequence> flying;
  std::size_t begun = 0;
  while (true) {
    while (begun < prompts.size() &&
           static_cast<int64_t>(flying.size()) < options.in_flight) {
      const Tokens& prompt = prompts[begun];
      flying.push_back(
          {static_cast<int64_t>(begun), prompt,
           static_cast<int64_t>(prompt.size()) + options.max_tokens, 0,
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
      if (on_end) on_end(each.index, each.tokens);
      results[each.index] = std::move(each.tokens);
      return true;
    });
  }
}

}  // namespace gpipe::train_program
