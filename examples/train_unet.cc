// Trains a U-Net, whose long skips cross the partitions, to find for each pixel
// of an image whether it is inside an object.
//
//   ./bazelw run //examples:train_unet -- --data_dir=/folder
//
// The mask of /folder/images/NAME.png is /folder/masks/NAME.png, white inside
// the object. Without --data_dir the program generates images. With each
// partition in a process (see docs/distributed.md):
//
//   launch --nproc=2 -- train_unet --distributed --data_dir=/folder
#include <gflags/gflags.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <vector>

#include "balancing/balancing.h"
#include "examples/either_pipeline.h"
#include "gpipe/distributed/world.h"
#include "gpipe/pipeline_module.h"
#include "gpipe/schedule.h"
#include "models/unet.h"
#include "training/data/augment.h"
#include "training/data/drawn.h"
#include "training/data/mask_folder.h"
#include "training/data/random.h"

DECLARE_int64(chunks);
DEFINE_string(data_dir, "",
              "A folder with images/NAME.png (or .jpg) and masks/NAME.png, "
              "where masks are white inside the object. '': the program "
              "generates discs on noise.");
DEFINE_double(held_out, 0.2,
              "The fraction of the images that is used for testing.");
DEFINE_int64(size, 64, "Height and width to which images are resized.");
DEFINE_int64(depth, 3, "Number of levels of the U-Net.");
DEFINE_int64(num_convs, 2, "Number of convolutions per level.");
DEFINE_int64(base_channels, 16, "Number of channels in the first level.");
DEFINE_int64(batch, 16, "Images per step.");
DEFINE_int64(epochs, 30, "Number of passes over the training images.");
DEFINE_double(lr, 0.005, "Learning rate of Adam.");
DEFINE_uint64(seed, 0, "The seed for weights and all other random numbers.");

namespace data = gpipe::data;

struct Images {
  int64_t size;
  std::function<data::MaskedImage(int64_t index)> get;
};

Images open_images() {
  if (FLAGS_data_dir.empty()) {
    std::cout << "no --data_dir: generates 160 images of discs on noise\n";
    return {160, [](int64_t index) {
              return data::draw_disc(data::mix_seed(FLAGS_seed, index));
            }};
  }
  const data::MaskFolder folder(FLAGS_data_dir);
  return {folder.size(), [folder](int64_t index) { return folder.get(index); }};
}

// Returns the images `indices` (int64, [rows]) as one batch. With `seed`, the
// images are cropped and flipped at random, for training.
data::MaskedSample load(const Images& images, const torch::Tensor& indices,
                        std::optional<uint64_t> seed = std::nullopt) {
  data::AugmentMaskOptions options;
  options.size = FLAGS_size;
  std::vector<torch::Tensor> inputs, masks;
  for (int64_t i = 0; i < indices.size(0); ++i) {
    const auto index = indices[i].item<int64_t>();
    const auto image = images.get(index);
    const auto sample =
        seed ? data::augment(image, options, data::mix_seed(*seed, index))
             : data::prepare(image, options);
    inputs.push_back(sample.image);
    masks.push_back(sample.mask);
  }
  return {torch::stack(inputs), torch::stack(masks)};
}

std::shared_ptr<gpipe::PipelineModule> make_pipeline(
    const std::shared_ptr<gpipe::World>& world) {
  const auto model =
      gpipe::models::unet(FLAGS_depth, FLAGS_num_convs, FLAGS_base_channels);
  return examples::make_pipeline(world, model, [&](int64_t partitions) {
    const auto batch = torch::ones({FLAGS_batch, 3, FLAGS_size, FLAGS_size});
    return gpipe::balancing::balance_by_time(partitions, model,
                                             batch.chunk(FLAGS_chunks)[0]);
  });
}

// Returns the sum of the losses of all pixels, and their number.
gpipe::WeightedLoss loss_of(const torch::Tensor& logits,
                            const torch::Tensor& mask) {
  namespace F = torch::nn::functional;
  gpipe::WeightedLoss loss;
  loss.sum = F::binary_cross_entropy_with_logits(
      logits, mask.to(logits.device()),
      F::BinaryCrossEntropyWithLogitsFuncOptions().reduction(torch::kSum));
  loss.weight = torch::tensor(mask.numel());
  return loss;
}

// Trains for one epoch and returns the mean loss per pixel.
double train(gpipe::PipelineModule& pipeline,
             torch::optim::Optimizer& optimizer, const Images& images,
             const torch::Tensor& indices, uint64_t seed) {
  pipeline.train();
  double sum = 0;
  const auto order = indices.index({torch::randperm(indices.size(0))});
  for (const auto& rows : order.split(FLAGS_batch)) {
    const auto batch = load(images, rows, seed);
    // The last batch of an epoch may be too small for --chunks.
    const auto count = gpipe::num_microbatches(rows.size(0), FLAGS_chunks);
    const auto schedule = gpipe::one_forward_one_backward(
        static_cast<int>(pipeline.balance().size()), static_cast<int>(count));
    optimizer.zero_grad();
    const auto result = pipeline.train_step(batch.image.to(pipeline.device()),
                                            batch.mask, loss_of, schedule);
    optimizer.step();
    sum += result.loss.item<double>() * static_cast<double>(rows.size(0));
  }
  return sum / static_cast<double>(indices.size(0));
}

// Returns the sum of the Dice coefficients of the images, and their number.
gpipe::WeightedLoss dice(const torch::Tensor& logits,
                         const torch::Tensor& mask) {
  return {data::dice(logits, mask).sum(), torch::tensor(mask.size(0))};
}

double test(gpipe::PipelineModule& pipeline, const Images& images,
            const torch::Tensor& indices) {
  double sum = 0;
  for (const auto& rows : indices.split(FLAGS_batch)) {
    const auto batch = load(images, rows);
    const auto mean =
        pipeline.evaluate(batch.image.to(pipeline.device()), batch.mask, dice);
    sum += mean.loss.item<double>() * *mean.weight;
  }
  return sum / static_cast<double>(indices.size(0));
}

void run() {
  TORCH_CHECK_VALUE(FLAGS_batch > 0 && FLAGS_lr > 0,
                    "--batch and --lr need to be above 0");
  torch::manual_seed(FLAGS_seed);
  const Images images = open_images();
  const auto held_out =
      static_cast<int64_t>(FLAGS_held_out * static_cast<double>(images.size));
  TORCH_CHECK_VALUE(held_out > 0 && held_out < images.size,
                    "--held_out=", FLAGS_held_out, " of ", images.size,
                    " images is ", held_out, "; neither part may be empty");
  const auto indices = torch::randperm(images.size);
  const auto for_test = indices.slice(0, 0, held_out);
  const auto for_train = indices.slice(0, held_out);

  const auto world = examples::connect();
  const auto pipeline = make_pipeline(world);
  // Seeds again, since only one of several processes has measured.
  torch::manual_seed(FLAGS_seed);
  // Optimizes the parameters of this process.
  torch::optim::Adam optimizer(pipeline->parameters(), FLAGS_lr);
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t epoch = 1; epoch <= FLAGS_epochs; ++epoch) {
    const double loss = train(*pipeline, optimizer, images, for_train,
                              data::mix_seed(FLAGS_seed, epoch));
    const double score = test(*pipeline, images, for_test);
    const std::chrono::duration<double> seconds =
        std::chrono::steady_clock::now() - begin;
    if (!world || world->rank() == 0) {
      std::cout << "epoch " << epoch << ", training loss " << loss
                << ", held-out Dice " << score << ", " << seconds.count()
                << " s" << std::endl;
    }
  }
}

int main(int argc, char** argv) {
  return examples::run_example(argc, argv, "train_unet",
                               "trains a U-Net through a pipeline", run);
}
