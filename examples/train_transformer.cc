// Trains a Transformer to predict a text character by character, then generates
// text with it.
//
//   ./bazelw run //examples:train_transformer -- --data_file=/folder/text.txt
//
// or with each partition in a process (see docs/distributed.md):
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
#include <iostream>
#include <memory>
#include <string>

#include "balancing/balancing.h"
#include "examples/either_pipeline.h"
#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/world.h"
#include "gpipe/pipeline_module.h"
#include "gpipe/schedule.h"
#include "models/transformer.h"
#include "training/data/random.h"
#include "training/data/text.h"

DECLARE_int64(chunks);
DEFINE_string(data_file, "", "A text file of at least some 100 kB.");
DEFINE_double(held_out, 0.05,
              "The fraction of the text, at its end, that is used for "
              "testing.");
DEFINE_int64(length, 128, "Sequence length in characters.");
DEFINE_int64(layers, 4,
             "Number of blocks, each with attention and feed-forward layers.");
DEFINE_int64(width, 128,
             "Width of the blocks. The feed-forward layers have four times "
             "this width.");
DEFINE_int64(heads, 4, "Number of attention heads.");
DEFINE_int64(batch, 16, "Windows of --length characters per step.");
DEFINE_int64(epochs, 6,
             "Number of epochs. Each trains for --steps and then tests.");
DEFINE_int64(steps, 100, "Steps per epoch.");
DEFINE_double(lr, 0.002, "Learning rate of Adam.");
DEFINE_uint64(seed, 0, "The seed for weights and all other random numbers.");

namespace data = gpipe::data;

std::shared_ptr<gpipe::PipelineModule> make_pipeline(
    const std::shared_ptr<gpipe::World>& world, const data::Text& text) {
  const auto model = gpipe::models::transformer(
      gpipe::models::TransformerOptions()
          .num_layers(FLAGS_layers)
          .width(FLAGS_width)
          .feed_forward(4 * FLAGS_width)
          .heads(FLAGS_heads)
          .vocabulary(static_cast<int64_t>(text.vocabulary().size()))
          .sequence(FLAGS_length));
  return examples::make_pipeline(world, model, [&](int64_t partitions) {
    const auto batch = torch::zeros({FLAGS_batch, FLAGS_length}, torch::kLong);
    return gpipe::balancing::balance_by_time(partitions, model,
                                             batch.chunk(FLAGS_chunks)[0]);
  });
}

// Returns the sum of the cross entropies of all characters, in nats, and their
// number.
gpipe::WeightedLoss loss_of(const torch::Tensor& logits,
                            const torch::Tensor& targets) {
  namespace F = torch::nn::functional;
  gpipe::WeightedLoss loss;
  loss.sum = F::cross_entropy(
      logits.flatten(0, 1), targets.to(logits.device()).flatten(),
      F::CrossEntropyFuncOptions().reduction(torch::kSum));
  loss.weight = torch::tensor(targets.numel());
  return loss;
}

// Trains for one epoch and returns the mean loss.
double train(gpipe::PipelineModule& pipeline,
             torch::optim::Optimizer& optimizer, const data::TextPart& text,
             uint64_t seed) {
  pipeline.train();
  const auto schedule = gpipe::one_forward_one_backward(
      static_cast<int>(pipeline.balance().size()),
      static_cast<int>(gpipe::num_microbatches(FLAGS_batch, FLAGS_chunks)));
  double sum = 0;
  for (int64_t step = 0; step < FLAGS_steps; ++step) {
    const auto batch = text.random_windows(FLAGS_batch, FLAGS_length,
                                           data::mix_seed(seed, step));
    optimizer.zero_grad();
    const auto result = pipeline.train_step(batch.inputs.to(pipeline.device()),
                                            batch.targets, loss_of, schedule);
    optimizer.step();
    sum += result.loss.item<double>();
  }
  return sum / static_cast<double>(FLAGS_steps);
}

// Returns the perplexity: exp of the mean cross entropy per character. A
// uniform guess among this number of characters would have the same loss.
double test(gpipe::PipelineModule& pipeline, const data::TextWindows& windows) {
  const auto inputs = windows.inputs.split(FLAGS_batch);
  const auto targets = windows.targets.split(FLAGS_batch);
  double sum = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto mean =
        pipeline.evaluate(inputs[i].to(pipeline.device()), targets[i], loss_of);
    sum += mean.loss.item<double>() * *mean.weight;
  }
  return std::exp(sum / static_cast<double>(windows.targets.numel()));
}

// Returns `size` characters that start with the text's first one. Each is drawn
// with the probability that the model predicts after the previous characters.
std::string write(gpipe::PipelineModule& pipeline,
                  const std::shared_ptr<gpipe::World>& world,
                  const data::Text& text, int64_t size) {
  auto tokens = text.tokens().slice(0, 0, 1);
  while (tokens.size(0) < size) {
    const auto seen =
        tokens.slice(0, std::max<int64_t>(0, tokens.size(0) - FLAGS_length));
    const auto input = seen.unsqueeze(0).to(pipeline.device());
    const auto result = pipeline.evaluate(input, input, loss_of,
                                          gpipe::TrainOptions().outputs(true));
    std::string next;
    if (result.outputs) {
      const auto logits = result.output()[0][-1].cpu();
      next = std::to_string(logits.softmax(0).multinomial(1).item<int64_t>());
    }
    // The process with the last partition has the outputs.
    if (world) next = gpipe::all_gather(*world, next).back();
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

  const auto world = examples::connect();
  const bool prints = !world || world->rank() == 0;
  const auto pipeline = make_pipeline(world, text);
  // Seeds again, since only one of several processes has measured.
  torch::manual_seed(FLAGS_seed);
  if (prints) {
    std::cout << for_train.size() << " characters for training, "
              << for_test.targets.numel() << " for testing, "
              << text.vocabulary().size() << " distinct" << std::endl;
  }
  // Optimizes the parameters of this process.
  torch::optim::Adam optimizer(pipeline->parameters(), FLAGS_lr);
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t epoch = 1; epoch <= FLAGS_epochs; ++epoch) {
    const double loss = train(*pipeline, optimizer, for_train,
                              data::mix_seed(FLAGS_seed, epoch));
    const double perplexity = test(*pipeline, for_test);
    const std::chrono::duration<double> seconds =
        std::chrono::steady_clock::now() - begin;
    if (prints) {
      std::cout << "epoch " << epoch << ", training loss " << loss
                << ", held-out perplexity " << perplexity << ", "
                << seconds.count() << " s" << std::endl;
    }
  }
  const auto written = write(*pipeline, world, text, 300);
  if (prints) std::cout << "it writes:\n" << written << std::endl;
}

int main(int argc, char** argv) {
  return examples::run_example(argc, argv, "train_transformer",
                               "trains a Transformer through a pipeline", run);
}
