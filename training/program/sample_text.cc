#include "training/program/sample_text.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "gpipe/eval_scope.h"
#include "training/data/random.h"
#include "training/program/generate.h"
#include "training/program/model_source.h"

namespace gpipe::train_program {
namespace {

constexpr int64_t kPrompt = 8;

}  // namespace

void check_sample(const Options& options, const Task& task) {
  TORCH_CHECK_VALUE(options.sample >= 0, "--sample=", options.sample,
                    ": must be 0 (none) or more");
  TORCH_CHECK_VALUE(options.sample == 0 || !task.vocabulary().empty(),
                    "--sample=", options.sample,
                    " needs a text, but --model=", options.model,
                    " is trained on other data; use --sample=0");
}

std::string sample_text(Engine& engine, Task& task, const Options& options,
                        const Precision& precision, int64_t step) {
  const std::string vocabulary = task.vocabulary();
  const ExportedFile* const file = task.source().file();
  TokenModel model{
      file ? TokenInputs(file->signature()) : TokenInputs(options.length),
      static_cast<int64_t>(vocabulary.size()), nullptr, nullptr};
  model.forward = [&](const std::vector<Sample>& parts,
                      const std::vector<int64_t>& /*sequences*/) {
    auto logits = engine.forward(parts);
    if (!logits) return logits;
    // A program may have more outputs than the text has characters.
    for (at::Tensor& each : *logits) {
      each = each.slice(-1, 0, model.vocabulary);
    }
    return logits;
  };
  model.exchange = [&](const std::string& mine) {
    return engine.all_gather(mine);
  };
  GenerateOptions generated;
  generated.max_tokens = options.sample;
  generated.sampling.temperature = 0.8;
  generated.seed = data::mix_seed(options.seed, 4, step);
  generated.slides = true;
  const at::Tensor row = task.test_batch(0).input[0].slice(0, 0, kPrompt);
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

}  // namespace gpipe::train_program
