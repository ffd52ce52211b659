// Trains a Transformer to say, character by character, how a text goes on, and
// lets it write some.
//
//   ./bazelw run //examples:train_transformer -- --data_file=/folder/text.txt
//
// or, with each partition in a process (see docs/distributed.md),
//
//   launch --nproc=2 -- train_transformer --distributed --data_file=TEXT
#include <gflags/gflags.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <iostream>
#include <string>

#include "balancing/balancing.h"
#include "data/random.h"
#include "data/text.h"
#include "examples/either_pipeline.h"
#include "gpipe/distributed/error.h"
#include "gpipe/program/flags.h"
#include "gpipe/program/working_directory.h"
#include "models/transformer.h"

DECLARE_int64(chunks);
DEFINE_string(data_file, "", "A text, of some 100 kB at least.");
DEFINE_double(held_out, 0.05, "The part of it, at its end, for testing.");
DEFINE_int64(length, 128, "Characters that the network sees at once.");
DEFINE_int64(layers, 4, "Blocks of attention and feed-forward.");
DEFINE_int64(width, 128, "Of the blocks; feed-forward has four times that.");
DEFINE_int64(heads, 4, "Of the attention.");
DEFINE_int64(batch, 16, "Windows of --length characters per step.");
DEFINE_int64(epochs, 6, "How often to train for --steps and test.");
DEFINE_int64(steps, 100, "Steps per epoch.");
DEFINE_double(lr, 0.002, "Learning rate of Adam.");
DEFINE_uint64(seed, 0, "Of the weights and of all else that is random.");

namespace data = gpipe::data;
using examples::EitherPipeline;

EitherPipeline make_pipeline(const data::Text& text) {
  const auto model = gpipe::models::transformer(
      gpipe::models::TransformerOptions()
          .num_layers(FLAGS_layers)
          .width(FLAGS_width)
          .feed_forward(4 * FLAGS_width)
          .heads(FLAGS_heads)
          .vocabulary(static_cast<int64_t>(text.vocabulary().size()))
          .sequence(FLAGS_length));
  return EitherPipeline(model, [&](int64_t partitions) {
    const auto batch = torch::zeros({FLAGS_batch, FLAGS_length}, torch::kLong);
    return gpipe::balancing::balance_by_time(partitions, model,
                                             batch.chunk(FLAGS_chunks)[0]);
  });
}

// The mean cross entropy per character, in nats.
torch::Tensor loss_of(const torch::Tensor& logits,
                      const torch::Tensor& targets) {
  return torch::nn::functional::cross_entropy(
      logits.flatten(0, 1), targets.to(logits.device()).flatten());
}

// One epoch; returns the mean loss.
double train(EitherPipeline& pipeline, torch::optim::Optimizer& optimizer,
             const data::TextPart& text, uint64_t seed) {
  pipeline.module().train();
  double sum = 0;
  for (int64_t step = 0; step < FLAGS_steps; ++step) {
    const auto batch = text.random_windows(FLAGS_batch, FLAGS_length,
                                           data::mix_seed(seed, step));
    optimizer.zero_grad();
    sum += pipeline.train_step(batch.inputs, batch.targets, loss_of);
    optimizer.step();
  }
  return sum / static_cast<double>(FLAGS_steps);
}

// Perplexity: exp of the mean cross entropy per character. That is the number
// of characters among which a guess would be as good.
double test(EitherPipeline& pipeline, const data::TextWindows& windows) {
  pipeline.module().eval();
  const auto inputs = windows.inputs.split(FLAGS_batch);
  const auto targets = windows.targets.split(FLAGS_batch);
  double sum = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    sum += pipeline.evaluate(inputs[i], targets[i], loss_of) *
           static_cast<double>(inputs[i].size(0));
  }
  return std::exp(sum / static_cast<double>(windows.inputs.size(0)));
}

// `size` characters, each drawn with the probability that the network gives it
// after those before it, from the text's first one on.
std::string write(EitherPipeline& pipeline, const data::Text& text,
                  int64_t size) {
  pipeline.module().eval();
  auto tokens = text.tokens().slice(0, 0, 1);
  while (tokens.size(0) < size) {
    const auto seen =
        tokens.slice(0, std::max<int64_t>(0, tokens.size(0) - FLAGS_length));
    std::string next;
    if (const auto logits = pipeline.forward(seen.unsqueeze(0))) {
      next = std::to_string(
          (*logits)[0][-1].softmax(0).multinomial(1).item<int64_t>());
    }
    next = pipeline.of_last(next);
    tokens = torch::cat({tokens, torch::tensor({std::stol(next)})});
  }
  return text.decode(tokens);
}

void run() {
  TORCH_CHECK_VALUE(!FLAGS_data_file.empty(), "--data_file=TEXT is missing");
  TORCH_CHECK_VALUE(FLAGS_batch > 0 && FLAGS_lr > 0,
                    "--batch and --lr need to be above 0");
  torch::manual_seed(FLAGS_seed);
  const data::Text text(FLAGS_data_file);
  const auto for_train = text.train(FLAGS_held_out);
  const auto for_test = text.test(FLAGS_held_out).all_windows(FLAGS_length);

  EitherPipeline pipeline = make_pipeline(text);
  torch::manual_seed(
      FLAGS_seed);  // of several processes one alone has measured
  if (pipeline.first()) {
    std::cout << for_train.size() << " characters for training, "
              << for_test.targets.numel() << " for testing, "
              << text.vocabulary().size() << " different ones" << std::endl;
  }
  // Of this process's parameters.
  torch::optim::Adam optimizer(pipeline.module().parameters(), FLAGS_lr);
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t epoch = 1; epoch <= FLAGS_epochs; ++epoch) {
    const double loss = train(pipeline, optimizer, for_train,
                              data::mix_seed(FLAGS_seed, epoch));
    const double perplexity = test(pipeline, for_test);
    const std::chrono::duration<double> seconds =
        std::chrono::steady_clock::now() - begin;
    if (pipeline.first()) {
      std::cout << "epoch " << epoch << ", training loss " << loss
                << ", held-out perplexity " << perplexity << ", "
                << seconds.count() << " s" << std::endl;
    }
  }
  const auto written = write(pipeline, text, 300);
  if (pipeline.first()) std::cout << "it writes:\n" << written << std::endl;
}

int main(int argc, char** argv) {
  try {
    gpipe::enter_working_directory();
    if (!gpipe::read_flags(&argc, &argv,
                           "trains a Transformer through a pipeline",
                           "examples/"))
      return 0;
    TORCH_CHECK_VALUE(argc == 1, argv[1], ": options are --name=value");
    run();
  } catch (const c10::ValueError& error) {  // a flag, or what it names
    std::cerr << "train_transformer: " << error.what_without_backtrace()
              << "\n";
    return 1;
  } catch (const gpipe::PeerError& error) {  // another process
    std::cerr << "train_transformer: " << error.what_without_backtrace()
              << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "train_transformer: " << error.what() << "\n";
    return 2;
  }
}
