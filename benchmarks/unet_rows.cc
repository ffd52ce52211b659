#include "benchmarks/unet_rows.h"

#include "models/unet.h"

namespace gpipe::benchmarks {

torch::nn::Sequential unet_of(const Experiment& experiment) {
  return models::unet(/*depth=*/5, experiment.size.at(0),
                      experiment.size.at(1));
}

}  // namespace gpipe::benchmarks
