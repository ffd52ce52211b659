#include "train_program/language.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/nn/functional/loss.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/checksum.h"
#include "data/random.h"
#include "data/text.h"
#include "models/named.h"

namespace gpipe::train_program {
namespace {

namespace F = torch::nn::functional;

struct Parts {
  data::TextPart train, test;
  int64_t vocabulary;
};

// Generates a text of sums: "47+8=55;" and so on.
Parts draw_sums(const Options& options) {
  constexpr int64_t kSums = 20000;
  const std::string vocabulary = "+0123456789;=";
  std::string text;
  data::Random random(data::mix_seed(options.seed, 3));
  for (int64_t k = 0; k < kSums; ++k) {
    const int64_t a = random.below(100), b = random.below(100);
    text += std::to_string(a) + "+" + std::to_string(b) + "=" +
            std::to_string(a + b) + ";";
  }
  std::vector<int64_t> tokens;
  for (const char c : text) {
    tokens.push_back(static_cast<int64_t>(vocabulary.find(c)));
  }
  const at::Tensor all = at::tensor(tokens);
  const auto cut = all.size(0) * 9 / 10;
  return {data::TextPart(all.slice(0, 0, cut), "sums"),
          data::TextPart(all.slice(0, cut), "sums"),
          static_cast<int64_t>(vocabulary.size())};
}

Parts open(const Options& options) {
  if (options.data_dir.empty()) return draw_sums(options);
  const data::Text text(options.data_dir);
  return {text.train(options.held_out), text.test(options.held_out),
          static_cast<int64_t>(text.vocabulary().size())};
}

class Language : public Task {
 public:
  explicit Language(const Options& options)
      : options_(options),
        parts_(open(options)),
        test_(parts_.test.all_windows(options.length)) {
    TORCH_CHECK_VALUE(options.batch > 0, "--batch=", options.batch,
                      ": must be at least 1");
    // Throws if the training part is shorter than one window.
    (void)parts_.train.random_windows(1, options.length, 0);
  }

  torch::nn::Sequential model() const override {
    models::ModelOptions options = options_.sizes.at(options_.model);
    options.vocabulary = parts_.vocabulary;
    options.sequence = options_.length;
    options.dropout = options_.transformer_dropout;
    return models::named_model(options_.model, options);
  }

  std::string data() const override {
    return std::to_string(parts_.train.size()) +
           " characters for training and " +
           std::to_string(test_.targets.numel()) + " for testing, " +
           std::to_string(parts_.vocabulary) + " different ones, windows of " +
           std::to_string(options_.length);
  }

  uint32_t checksum() const override {
    if (options_.data_dir.empty()) return 0;
    uint32_t sum = 0;
    for (const data::TextPart& part : {parts_.train, parts_.test}) {
      sum = data::checksum_of(part.tokens(), sum);
    }
    return sum;
  }

  std::string rows_name() const override { return "windows"; }

  int64_t train_batches() const override {
    return std::max<int64_t>(
        1, parts_.train.size() / (options_.length * options_.batch));
  }
  int64_t test_batches() const override {
    return (test_.inputs.size(0) + options_.batch - 1) / options_.batch;
  }

  // Uses one seed per row, so that a row does not depend on the range in
  // `rows`.
  Sample train_batch(int64_t index, Rows rows) override {
    std::vector<at::Tensor> inputs, targets;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const auto window = parts_.train.random_windows(
          1, options_.length,
          data::mix_seed(options_.seed, 2, index * options_.batch + row));
      inputs.push_back(window.inputs);
      targets.push_back(window.targets);
    }
    return {at::cat(inputs), at::cat(targets)};
  }

  Sample test_batch(int64_t index) override {
    const int64_t begin = index * options_.batch;
    const int64_t end = begin + options_.batch;
    return {test_.inputs.slice(0, begin, end),
            test_.targets.slice(0, begin, end)};
  }

  at::Tensor loss(const at::Tensor& output,
                  const at::Tensor& target) const override {
    return F::cross_entropy(output.to(at::kFloat).flatten(0, 1),
                            target.to(output.device()).flatten());
  }

  Score score(const at::Tensor& output,
              const at::Tensor& target) const override {
    return score_of_tokens(output, target);
  }

  std::string metric_name() const override { return "perplexity"; }
  double metric(const Score& score) const override {
    return std::exp(score.loss / score.items);
  }

 private:
  const Options options_;
  const Parts parts_;
  const data::TextWindows test_;
};

}  // namespace

std::unique_ptr<Task> language(const Options& options) {
  return std::make_unique<Language>(options);
}

Score score_of_tokens(const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor losses =
      F::cross_entropy(output.to(at::kFloat).flatten(0, 1), target.flatten(),
                       F::CrossEntropyFuncOptions().reduction(torch::kNone));
  Score score;
  score.items = static_cast<double>(target.numel());
  score.loss = losses.to(at::kDouble).sum().item<double>();
  return score;
}

}  // namespace gpipe::train_program
