#include "training/data/pixels.h"

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <c10/util/Exception.h>

namespace gpipe::data {

at::Tensor cut(const at::Tensor& planes, const Window& window) {
  return planes.narrow(1, window.top, window.height)
      .narrow(2, window.left, window.width);
}

at::Tensor resize(const at::Tensor& planes, int64_t height, int64_t width) {
  const at::Tensor values = planes.to(at::kFloat);
  if (planes.size(1) == height && planes.size(2) == width) return values;
  return at::_upsample_bilinear2d_aa(values.unsqueeze(0), {height, width},
                                     /*align_corners=*/false)
      .squeeze(0);
}

void check_image(const at::Tensor& image) {
  TORCH_CHECK_VALUE(image.dim() == 3 && image.size(0) == 3 &&
                        image.scalar_type() == at::kByte && image.numel() > 0,
                    "expected an image of bytes, [3, height, width], got ",
                    image.scalar_type(), " ", image.sizes());
}

void check_size(int64_t size) {
  TORCH_CHECK_VALUE(size > 0, "cannot make images of ", size, "x", size);
}

}  // namespace gpipe::data
