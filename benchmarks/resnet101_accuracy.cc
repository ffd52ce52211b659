// Trains ResNet-101 on images through a pipeline and tells the error on images
// that it has not seen: what the papers show for ImageNet, at any size.

#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// After LibTorch's headers, which define the same macros unless glog has.
#include <gflags/gflags.h>
#include <glog/logging.h>

#include "benchmarks/harness/checksum.h"
#include "benchmarks/harness/devices.h"
#include "benchmarks/harness/environment.h"
#include "benchmarks/harness/learning_rate.h"
#include "benchmarks/harness/output.h"
#include "benchmarks/harness/parse.h"
#include "benchmarks/harness/program.h"
#include "benchmarks/harness/progress.h"
#include "benchmarks/harness/settings.h"
#include "benchmarks/harness/throughput.h"
#include "benchmarks/harness/trainee.h"
#include "data/augment.h"
#include "data/batch_loader.h"
#include "data/open.h"
#include "data/random.h"
#include "data/shapes.h"
#include "gpipe/gpipe.h"
#include "gpipe/meta.h"
#include "models/resnet.h"

DEFINE_string(data_dir, "",
              "A folder with CIFAR-10's binary files, with train/<class>/ and "
              "test/<class>/ (or val/), or with class folders. '': shapes that "
              "the program draws.");
DEFINE_double(held_out, 0.2,
              "The part of a --data_dir of class folders that is for testing.");
DEFINE_int64(image_size, 32, "Images are brought to this height and width.");
DEFINE_string(crop, "auto",
              "How training images are cut: padded (CIFAR), resized "
              "(ImageNet), none; auto: padded up to 64 pixels, else resized.");
DEFINE_int64(limit, 0, "Training images per epoch. 0: all.");
DEFINE_int64(partitions, 2, "Partitions of the pipeline.");
DEFINE_int64(threads_per_partition, 1,
             "Intra-op threads of a CPU partition. Results are bit-equal "
             "between partition counts where this and --chunks are equal.");
// The papers' rate wants ImageNet's number of steps: ResNet-101 with random
// weights does not get over it in the few that a small set has.
DEFINE_double(lr, 0.001,
              "Learning rate. 0: the papers', 0.1 x max(1, batch / 256).");
DEFINE_double(warmup_epochs, 1,
              "Epochs in which the rate grows from --warmup_lr to --lr (the "
              "papers: 4 of 90).");
DEFINE_double(warmup_lr, -1,
              "Where the warm-up begins (the papers: 0.1). -1: a tenth of --lr "
              "or, where that is the papers', 0.1.");
DEFINE_string(milestones, "auto",
              "Epochs after which the rate falls to a tenth, counted from the "
              "start (the papers: 30,60,80 of 90). auto: in that proportion.");
DEFINE_double(momentum, 0.9, "Of SGD, in Nesterov's form.");
DEFINE_double(weight_decay, 1e-4, "Of SGD.");
DEFINE_bool(published, true,
            "Add torchgpipe's results on ImageNet to the table.");

namespace gpipe::benchmarks {
namespace {

// Everything that a run is made of, with the flags' meaning worked out.
struct Plan {
  Settings settings;
  int64_t batch_size = 0;
  int64_t chunks = 0;
  int64_t epochs = 0;
  Checkpoint checkpoint = Checkpoint::kExceptLast;
  std::vector<c10::Device> devices;
  LearningRate rate;
  data::AugmentOptions augment;
};

data::AugmentOptions augment_options() {
  data::AugmentOptions options;
  options.size = FLAGS_image_size;
  const size_t crop =
      parse_choice("crop", FLAGS_crop, {"auto", "padded", "resized", "none"});
  const bool padded = crop == 1 || (crop == 0 && FLAGS_image_size <= 64);
  options.crop = padded      ? data::Crop::kPadded
                 : crop == 3 ? data::Crop::kNone
                             : data::Crop::kResized;
  return options;
}

void check(bool sound, const std::string& text) {
  if (!sound) throw std::invalid_argument(text);
}

Plan make_plan() {
  check_format();
  check(FLAGS_image_size > 0, "--image_size needs to be above 0");
  check(FLAGS_partitions > 0, "--partitions needs to be above 0");
  check(FLAGS_threads_per_partition >= 0 && FLAGS_limit >= 0 && FLAGS_lr >= 0 &&
            FLAGS_warmup_epochs >= 0,
        "--threads_per_partition, --limit, --lr and --warmup_epochs cannot be "
        "below 0");
  check(FLAGS_held_out > 0 && FLAGS_held_out < 1,
        "--held_out is a part: above 0 and below 1");
  Plan plan;
  plan.settings = parse_settings();
  plan.batch_size = plan.settings.batch_size.value_or(64);
  plan.chunks = plan.settings.chunks.value_or(4);
  plan.epochs = plan.settings.epochs.value_or(6);
  plan.checkpoint = plan.settings.checkpoint.value_or(plan.checkpoint);
  check(plan.batch_size % plan.chunks == 0,
        "--batch_size=" + std::to_string(plan.batch_size) +
            " is not a multiple of --chunks=" + std::to_string(plan.chunks) +
            ": BatchNorm would see micro-batches of unequal sizes");
  const auto& balance = plan.settings.balance;
  check(balance.empty() ||
            static_cast<int64_t>(balance.size()) == FLAGS_partitions,
        "--balance=" + join(balance) +
            " is not for --partitions=" + std::to_string(FLAGS_partitions));
  if (!balance.empty()) {
    const MetaGuard meta;
    const auto layers = models::resnet101(/*num_classes=*/1)->size();
    check_layers(plan.settings, static_cast<int64_t>(layers));
  }
  plan.devices = devices_for(FLAGS_partitions, plan.settings.devices);

  const double times =
      std::max(1.0, static_cast<double>(plan.batch_size) / 256);
  plan.rate.base = FLAGS_lr > 0 ? FLAGS_lr : 0.1 * times;
  const double tenth = FLAGS_lr > 0 ? FLAGS_lr / 10 : 0.1;
  plan.rate.warmup_from = FLAGS_warmup_lr >= 0 ? FLAGS_warmup_lr : tenth;
  plan.rate.warmup_epochs = FLAGS_warmup_epochs;
  plan.rate.milestones =
      FLAGS_milestones == "auto"
          ? usual_milestones(plan.epochs)
          : parse_positive_list("milestones", FLAGS_milestones);
  plan.augment = augment_options();
  return plan;
}

data::Split open_data(const Plan& plan) {
  if (!FLAGS_data_dir.empty()) {
    return data::open_images(FLAGS_data_dir, FLAGS_held_out,
                             plan.settings.seed);
  }
  // Seeds that differ: the test images are other ones.
  const uint64_t seed = plan.settings.seed;
  return {std::make_shared<data::Shapes>(512, FLAGS_image_size,
                                         data::mix_seed(seed, 0)),
          std::make_shared<data::Shapes>(128, FLAGS_image_size,
                                         data::mix_seed(seed, 1))};
}

GPipe make_pipeline(const Plan& plan, int64_t classes) {
  torch::manual_seed(plan.settings.seed);
  torch::nn::Sequential model = models::resnet101(classes);
  std::vector<int64_t> balance = plan.settings.balance;
  if (balance.empty()) {
    const int64_t side = FLAGS_image_size;
    const at::Tensor sample = at::rand(
        {plan.batch_size / plan.chunks, 3, side, side}, plan.devices.front());
    const int64_t threads = FLAGS_threads_per_partition > 0
                                ? FLAGS_threads_per_partition
                                : threads_per_partition(FLAGS_partitions);
    balance = Balancer().balance(FLAGS_partitions, model, sample, threads);
  }
  LOG(INFO) << "batch size: " << plan.batch_size << ", chunks: " << plan.chunks
            << ", balance: [" << join(balance)
            << "], checkpoint: " << name_of(plan.checkpoint)
            << ", learning rate: " << plan.rate.base << " after "
            << plan.rate.warmup_epochs << " epochs of warm-up, a tenth after ["
            << join(plan.rate.milestones) << "]";
  return GPipe(model, GPipeOptions(balance)
                          .devices(plan.devices)
                          .chunks(plan.chunks)
                          .checkpoint(plan.checkpoint)
                          .threads_per_partition(FLAGS_threads_per_partition));
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return torch::nn::functional::cross_entropy(output, target);
}

// Sums over images.
struct Score {
  double loss = 0;
  int64_t wrong = 0;
  int64_t images = 0;

  void add(const at::Tensor& output, const at::Tensor& target,
           const at::Tensor& mean_loss) {
    const int64_t rows = target.size(0);
    loss += mean_loss.item<double>() * static_cast<double>(rows);
    wrong += output.argmax(1).ne(target).sum().item<int64_t>();
    images += rows;
  }
  double mean_loss() const { return loss / static_cast<double>(images); }
  double error_percent() const {
    return 100 * static_cast<double>(wrong) / static_cast<double>(images);
  }
};

class Trainer {
 public:
  Trainer(const Plan& plan, const data::Split& split)
      : plan_(plan),
        split_(split),
        pipeline_(make_pipeline(
            plan, static_cast<int64_t>(split.train->classes().size()))),
        optimizer_(pipeline_->parameters(),
                   torch::optim::SGDOptions(plan.rate.base)
                       .momentum(FLAGS_momentum)
                       .weight_decay(FLAGS_weight_decay)
                       .nesterov(FLAGS_momentum > 0)),
        progress_("resnet101_accuracy", plan.epochs) {}

  // One epoch (from 0) of training, then the test: a row of the table.
  Row run_epoch(int64_t epoch) {
    const Stopwatch watch(plan_.devices);
    const Score train = train_epoch(epoch);
    const Duration duration = watch.elapsed();
    const Score test = test_epoch();
    const double speed =
        static_cast<double>(train.images) / duration.wall_seconds;
    Row row;
    row.name = std::to_string(epoch + 1);
    row.cells = {Cell(plan_.rate.at(static_cast<double>(epoch)), 5),
                 Cell(train.mean_loss(), 6),
                 Cell(train.error_percent(), 2),
                 Cell(test.mean_loss(), 6),
                 Cell(test.error_percent(), 2),
                 Cell(speed, 2),
                 Cell(duration.wall_seconds, 2)};
    row.durations = {duration};
    progress_.say("epoch " + row.name + "/" + std::to_string(plan_.epochs) +
                  " | loss " + row.cells[1].text() + " | test error " +
                  row.cells[4].text() + "% | " + row.cells[5].text() +
                  " samples/s");
    return row;
  }

  uint64_t state_checksum() const {
    std::map<std::string, at::Tensor> tensors;
    for (const auto& item : pipeline_->named_parameters()) {
      tensors[item.key()] = item.value();
    }
    for (const auto& item : pipeline_->named_buffers()) {
      tensors[item.key()] = item.value();
    }
    return checksum(tensors);
  }

  const std::vector<int64_t>& balance() const { return pipeline_->balance(); }

 private:
  Score train_epoch(int64_t epoch) {
    const uint64_t seed = data::mix_seed(plan_.settings.seed, 2, epoch);
    auto order = data::permutation(split_.train->size(), seed);
    if (FLAGS_limit > 0 && FLAGS_limit < split_.train->size()) {
      order.resize(FLAGS_limit);
    }
    // Equal batches, for micro-batches of equal size.
    const auto images = static_cast<int64_t>(order.size());
    const int64_t steps = images / plan_.batch_size;
    check(steps > 0, "--batch_size=" + std::to_string(plan_.batch_size) +
                         " is more than the " + std::to_string(images) +
                         " images of an epoch");
    data::BatchLoader loader(
        split_.train, std::move(order), plan_.batch_size,
        /*whole_batches=*/true, [&](const at::Tensor& image, int64_t index) {
          return data::augment(image, plan_.augment,
                               data::mix_seed(seed, index));
        });
    pipeline_->train();
    Score score;
    const Stopwatch watch({});
    for (int64_t step = 0; step < steps; ++step) {
      const double done =
          static_cast<double>(step) / static_cast<double>(steps);
      set_learning_rate(plan_.rate.at(static_cast<double>(epoch) + done));
      train_step(*loader.next(), epoch, step, &score);
      progress_.update(
          epoch + 1, done + 1 / static_cast<double>(steps),
          static_cast<double>(score.images) / watch.elapsed().wall_seconds);
    }
    return score;
  }

  void train_step(const data::Batch& batch, int64_t epoch, int64_t step,
                  Score* score) {
    const at::Tensor target = batch.labels.to(plan_.devices.back());
    optimizer_.zero_grad();
    const at::Tensor output =
        pipeline_->forward(batch.images.to(plan_.devices.front()));
    const at::Tensor loss = loss_of(output, target);
    loss.backward();
    optimizer_.step();
    score->add(output.detach(), target, loss.detach());
    if (!std::isfinite(score->loss)) {
      throw std::runtime_error("the loss is not a finite number in epoch " +
                               std::to_string(epoch + 1) + ", step " +
                               std::to_string(step + 1) +
                               "; try a smaller --lr or --warmup_epochs");
    }
  }

  Score test_epoch() {
    data::BatchLoader loader(
        split_.test, all_indices(split_.test->size()), plan_.batch_size,
        /*whole_batches=*/false, [&](const at::Tensor& image, int64_t) {
          return data::prepare(image, plan_.augment);
        });
    pipeline_->eval();
    const torch::NoGradGuard no_grad;
    Score score;
    while (const auto batch = loader.next()) {
      const at::Tensor target = batch->labels.to(plan_.devices.back());
      const at::Tensor output =
          pipeline_->forward(batch->images.to(plan_.devices.front()));
      score.add(output, target, loss_of(output, target));
    }
    return score;
  }

  static std::vector<int64_t> all_indices(int64_t size) {
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < size; ++i) indices.push_back(i);
    return indices;
  }

  void set_learning_rate(double rate) {
    for (auto& group : optimizer_.param_groups()) group.options().set_lr(rate);
  }

  const Plan& plan_;
  const data::Split& split_;
  GPipe pipeline_;
  torch::optim::SGD optimizer_;
  Progress progress_;
};

// torchgpipe's pipelines on ImageNet, 90 epochs, as rows to compare with: the
// error at the end and the speed on 2 (pipeline-256) and 8 Tesla P40.
std::vector<Row> published_rows() {
  struct Published {
    const char* name;
    double rate, error_percent, samples_per_second;
  };
  std::vector<Row> rows;
  for (const Published& published :
       {Published{"torchgpipe pipeline-256", 0.1, 21.99, 117.432},
        Published{"torchgpipe pipeline-1k", 0.4, 22.24, 294.739},
        Published{"torchgpipe pipeline-4k", 1.6, 22.13, 378.746},
        Published{"torchgpipe dataparallel-256", 0.1, 22.02, 180.344}}) {
    Row& row = rows.emplace_back();
    row.name = published.name;
    row.cells = {Cell(published.rate, 5),
                 Cell(),
                 Cell(),
                 Cell(),
                 Cell(published.error_percent, 2),
                 Cell(published.samples_per_second, 2)};
  }
  return rows;
}

std::string hexadecimal(uint64_t value) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%016llx",
                static_cast<unsigned long long>(value));
  return buffer;
}

int train() {
  const Plan plan = make_plan();
  const data::Split split = open_data(plan);
  use_kernels(plan.settings);
  const Environment environment = describe_environment();
  LOG(INFO) << environment.to_string();
  Trainer trainer(plan, split);

  Table table;
  table.title = "ResNet-101, accuracy through a pipeline of " +
                std::to_string(FLAGS_partitions) + " partitions";
  table.name_column = "epoch";
  table.columns = {"learning rate", "training loss",      "training error %",
                   "test loss",     "test top-1 error %", "samples/s",
                   "seconds"};
  for (int64_t epoch = 0; epoch < plan.epochs; ++epoch) {
    table.rows.push_back(trainer.run_epoch(epoch));
  }
  if (FLAGS_published) {
    for (auto& row : published_rows()) table.rows.push_back(std::move(row));
  }

  const std::string side = std::to_string(FLAGS_image_size);
  table.notes = {
      (FLAGS_data_dir.empty() ? "Drawn shapes: " : "Images: ") +
          std::to_string(split.train->size()) + " for training, " +
          std::to_string(split.test->size()) + " for testing, " +
          std::to_string(split.train->classes().size()) + " classes, " + side +
          "x" + side + ".",
      "Batch " + std::to_string(plan.batch_size) + ", chunks " +
          std::to_string(plan.chunks) + ", balance [" +
          join(trainer.balance()) + "], checkpoint " +
          name_of(plan.checkpoint) + ", seed " +
          std::to_string(plan.settings.seed) + ".",
      "The learning rate is that at the beginning of an epoch; the training "
      "error is of the augmented images, while the weights change.",
      "Checksum of parameters and buffers: " +
          hexadecimal(trainer.state_checksum())};
  LOG(INFO) << table.notes.back();
  if (FLAGS_published) {
    table.notes.emplace_back(
        "torchgpipe's rows are of ImageNet at the end of 90 epochs, means of "
        "several runs, on 2 (256) and 8 Tesla P40; its rate is that after the "
        "warm-up.");
  }
  print_table(table, "resnet101_accuracy", environment);
  return kOk;
}

}  // namespace
}  // namespace gpipe::benchmarks

int main(int argc, char** argv) {
  const gpipe::benchmarks::Program program{
      "resnet101_accuracy",
      "trains ResNet-101 on images through a pipeline (SGD\nwith Nesterov's "
      "momentum), tells the top-1 error on held-out images per epoch and\na "
      "checksum of the result, which is the same for any number of partitions.",
      {"", "--data_dir=$HOME/cifar-10-batches-bin --epochs=30",
       "--data_dir=$HOME/photos --image_size=224 --batch_size=32 --chunks=8",
       "--partitions=4 --balance=92,92,93,93"}};
  return gpipe::benchmarks::run_program(argc, argv, program,
                                        gpipe::benchmarks::train);
}
