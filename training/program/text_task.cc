// The task of language modelling by characters.
#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/named.h"
#include "training/data/checksum.h"
#include "training/data/random.h"
#include "training/data/text.h"
#include "training/program/tasks.h"

namespace gpipe::train_program {
namespace {

// The text of a run.
struct Corpus {
  data::TextPart train, test;
  std::string vocabulary;      // the byte of each token
  at::Tensor tokens;           // of both parts, int64, [size]
  std::optional<int64_t> end;  // the token that ends a line, if there is one
};

// Generates a text of sums: "47+8=55;" and so on.
Corpus draw_sums(const Options& options) {
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
  (void)held_out_of(all.size(0), options.held_out, "characters");  // checks
  const auto cut = static_cast<int64_t>((1 - options.held_out) *
                                        static_cast<double>(all.size(0)));
  return {data::TextPart(all.slice(0, 0, cut), "sums"),
          data::TextPart(all.slice(0, cut), "sums"), vocabulary, all,
          static_cast<int64_t>(vocabulary.find(';'))};
}

Corpus open(const Options& options) {
  if (options.data_dir.empty()) return draw_sums(options);
  const data::Text text(options.data_dir);
  const auto line_end = text.vocabulary().find('\n');
  return {text.train(options.held_out), text.test(options.held_out),
          text.vocabulary(), text.tokens(),
          line_end == std::string::npos
              ? std::nullopt
              : std::optional<int64_t>(static_cast<int64_t>(line_end))};
}

// The parts of the task that do not depend on what a row is.
class Language : public ModelTask {
 public:
  Language(const Options& options, const std::shared_ptr<ModelSource>& source)
      : ModelTask(source->fitted(options), source,
                  {loss_of_labels, score_of_labels, "perplexity",
                   [](const Score& score) {
                     return std::exp(score.loss / score.items);
                   }}),
        corpus_(open(options)) {
    check_at_least("batch", options.batch, 1);
    check_at_least("length", options.length, 1);
    source->check_outputs(tokens(), "different characters");
  }

  torch::nn::Sequential model() const override {
    models::ModelOptions sizes = sizes_of(options());
    sizes.vocabulary = tokens();
    sizes.sequence = options().length;
    sizes.dropout = options().transformer_dropout;
    return source().make(sizes);
  }

  uint32_t checksum() const override {
    if (options().data_dir.empty()) return 0;
    uint32_t sum = 0;
    for (const data::TextPart& part : {corpus_.train, corpus_.test}) {
      sum = data::checksum_of(part.tokens(), sum);
    }
    return sum;
  }

  std::string vocabulary() const override { return corpus_.vocabulary; }

 protected:
  const Corpus& corpus() const { return corpus_; }
  // Returns the number of different tokens.
  int64_t tokens() const {
    return static_cast<int64_t>(corpus_.vocabulary.size());
  }

 private:
  const Corpus corpus_;
};

// A row is a window of the text.
class WindowTask : public Language {
 public:
  WindowTask(const Options& options, const std::shared_ptr<ModelSource>& source)
      : Language(options, source),
        batches_(limited(
            std::max<int64_t>(
                1, corpus().train.size() / options.length / options.batch),
            options)) {}

  // Throws c10::ValueError if the part for training or that for testing has no
  // window. Only training needs windows, so that a text of any length can be
  // continued.
  std::string data() const override {
    (void)corpus().train.random_windows(1, options().length, 0);
    return std::to_string(corpus().train.size()) +
           " characters for training and " +
           std::to_string(test().targets.numel()) + " for testing, " +
           std::to_string(tokens()) + " different ones, windows of " +
           std::to_string(options().length);
  }

  std::string rows_name() const override { return "windows"; }

  int64_t train_batches() const override { return batches_; }
  int64_t test_batches() const override {
    return batches_of(test().inputs.size(0));
  }

  // Uses one seed per row, so that a row does not depend on the range in
  // `rows`.
  Sample train_batch(int64_t index, Rows rows) override {
    std::vector<at::Tensor> inputs, targets;
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const auto window = corpus().train.random_windows(
          1, options().length,
          data::mix_seed(options().seed, 2, index * options().batch + row));
      inputs.push_back(window.inputs);
      targets.push_back(window.targets);
    }
    return {at::cat(inputs), at::cat(targets)};
  }

  Sample test_batch(int64_t index) override {
    const data::TextWindows all = test();
    const Rows rows = rows_of(index, all.inputs.size(0));
    return {all.inputs.slice(0, rows.begin, rows.end),
            all.targets.slice(0, rows.begin, rows.end)};
  }

 private:
  // Returns views of the windows for testing.
  data::TextWindows test() const {
    return corpus().test.all_windows(options().length);
  }

  const int64_t batches_;  // per epoch
};

// Returns all sequences of the text, for Options::bucket above 0.
data::Sequences sequences_of(const Corpus& corpus, const Options& options) {
  TORCH_CHECK_VALUE(
      options.bucket <= options.length, "--bucket=", options.bucket,
      " is above --length=", options.length,
      ", to which sequences are cut; use at most ", options.length);
  TORCH_CHECK_VALUE(corpus.end, "--bucket=", options.bucket,
                    " trains on lines, but --data_dir=", options.data_dir,
                    " has no line end among its ", corpus.tokens.size(0),
                    " characters; use --bucket=0");
  return {corpus.tokens, *corpus.end, options.length};
}

// A row is a whole sequence: a line or a sum.
class SequenceTask : public Language {
 public:
  SequenceTask(const Options& options,
               const std::shared_ptr<ModelSource>& source)
      : Language(options, source),
        all_(sequences_of(corpus(), options)),
        train_(all_.slice(
            0, all_.size() -
                   held_out_of(all_.size(), options.held_out, "sequences"))),
        test_(all_.slice(train_.size(), all_.size())),
        batches_(limited(batches_of(train_.size()), options)),
        loader_(train_, options.bucket, options.seed),
        test_order_(static_cast<std::size_t>(test_.size())) {
    TORCH_CHECK_VALUE(options.batch <= train_.size(), "--batch=", options.batch,
                      " is more than the ", train_.size(),
                      " sequences of the training data");
    // Similar lengths together need less padding.
    std::iota(test_order_.begin(), test_order_.end(), 0);
    std::stable_sort(test_order_.begin(), test_order_.end(),
                     [&](int64_t a, int64_t b) {
                       return test_.length(a) < test_.length(b);
                     });
  }

  std::string data() const override {
    return std::to_string(train_.size()) + " sequences of " +
           std::to_string(train_.num_tokens()) +
           " characters for training and " + std::to_string(test_.size()) +
           " of " + std::to_string(test_.num_tokens()) + " for testing, " +
           std::to_string(tokens()) + " different ones, cut at " +
           std::to_string(options().length);
  }

  std::string rows_name() const override { return "sequences"; }

  // Rounded up, so that --epochs uses each sequence as often at least.
  int64_t train_batches() const override { return batches_; }
  int64_t test_batches() const override { return batches_of(test_.size()); }

  // Used to measure layers; training uses train_parts().
  Sample train_batch(int64_t index, Rows rows) override {
    const int64_t first = index * options().batch;
    return to_sample(loader_.rows(first + rows.begin, first + rows.end));
  }

  bool has_parts() const override { return true; }
  std::vector<Sample> train_parts(Rows rows, int64_t count) override {
    std::vector<Sample> parts;
    for (auto& part : loader_.parts(rows.begin, rows.end, count)) {
      parts.push_back(to_sample(std::move(part)));
    }
    return parts;
  }

  Sample test_batch(int64_t index) override {
    const Rows rows = rows_of(index, test_.size());
    const auto first = test_order_.begin();
    return to_sample(
        test_.rows({first + rows.begin, first + rows.end}, options().bucket));
  }

 private:
  static Sample to_sample(data::TextWindows rows) {
    return {std::move(rows.inputs), std::move(rows.targets)};
  }

  const data::Sequences all_, train_, test_;
  const int64_t batches_;  // per epoch
  data::SequenceLoader loader_;
  std::vector<int64_t> test_order_;  // indices in test_, shortest first
};

}  // namespace

std::unique_ptr<Task> language(const Options& options,
                               std::shared_ptr<ModelSource> source) {
  TORCH_CHECK_VALUE(options.bucket >= 0, "--bucket=", options.bucket,
                    ": must not be negative");
  if (options.bucket > 0) {
    return std::make_unique<SequenceTask>(options, source);
  }
  return std::make_unique<WindowTask>(options, source);
}

}  // namespace gpipe::train_program
