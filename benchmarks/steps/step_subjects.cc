#include "benchmarks/steps/step_subjects.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "models/amoebanet.h"
#include "models/resnet.h"
#include "models/transformer.h"
#include "models/unet.h"

namespace gpipe::benchmarks {

std::vector<StepSubject> step_subjects(const StepSizes& sizes) {
  torch::manual_seed(0);
  const auto images = at::rand({sizes.rows, 3, 64, 64});
  return {
      {"ResNet-101", [] { return models::resnet101(10); }, images},
      {"AmoebaNet-D (6, 64)", [] { return models::amoebanetd(10, 6, 64); },
       images},
      {"U-Net (2, 16)", [] { return models::unet(5, 2, 16); }, images},
      {"Transformer (4, " + std::to_string(sizes.width) + ")",
       [sizes] {
         return models::transformer(models::TransformerOptions()
                                        .num_layers(4)
                                        .width(sizes.width)
                                        .feed_forward(4 * sizes.width)
                                        .heads(4)
                                        .vocabulary(100)
                                        .sequence(64)
                                        .dropout(sizes.dropout));
       },
       at::randint(100, {sizes.rows, 64}, at::kLong)},
  };
}

at::Tensor mean_square(const at::Tensor& output, const at::Tensor&) {
  return output.pow(2).mean();
}

}  // namespace gpipe::benchmarks
