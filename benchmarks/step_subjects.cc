#include "benchmarks/step_subjects.h"

#include <torch/types.h>
#include <torch/utils.h>

#include "models/amoebanet.h"
#include "models/resnet.h"
#include "models/transformer.h"
#include "models/unet.h"

namespace gpipe::benchmarks {

std::vector<StepSubject> step_subjects() {
  torch::manual_seed(0);
  const auto images = at::rand({16, 3, 64, 64});
  return {
      {"ResNet-101", [] { return models::resnet101(10); }, images},
      {"AmoebaNet-D (6, 64)", [] { return models::amoebanetd(10, 6, 64); },
       images},
      {"U-Net (2, 16)", [] { return models::unet(5, 2, 16); }, images},
      {"Transformer (4, 256)",
       [] {
         return models::transformer(models::TransformerOptions()
                                        .num_layers(4)
                                        .width(256)
                                        .feed_forward(1024)
                                        .heads(4)
                                        .vocabulary(100)
                                        .sequence(64)
                                        .dropout(0));
       },
       at::randint(100, {16, 64}, at::kLong)},
  };
}

at::Tensor mean_square(const at::Tensor& output, const at::Tensor&) {
  return output.pow(2).mean();
}

}  // namespace gpipe::benchmarks
