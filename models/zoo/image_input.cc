#include "models/zoo/image_input.h"

#include <c10/util/Exception.h>

namespace gpipe::models {

void check_images(const char* model, const at::Tensor& input,
                  int64_t channels) {
  TORCH_CHECK_VALUE(input.dim() == 4 && input.size(1) == channels, model,
                    ": the input must have 4 dimensions and ", channels,
                    " channels, that is [batch, ", channels,
                    ", height, width], but its shape is ", input.sizes());
}

}  // namespace gpipe::models
