#include "training/data/mask_folder.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>

#include <filesystem>
#include <map>

#include "training/data/checksum.h"
#include "training/data/image.h"

namespace gpipe::data {
namespace {

namespace fs = std::filesystem;

// Paths by name without extension.
using Paths = std::map<std::string, std::string>;

// Returns the images in <root>/<name>.
Paths list(const fs::path& root, const char* name) {
  const fs::path folder = root / name;
  TORCH_CHECK_VALUE(fs::is_directory(folder), root.string(),
                    ": holds no folder ", name,
                    "/; expected images/NAME.png (or .jpg, .jpeg) and, of the "
                    "same names, masks/NAME.png");
  Paths paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.is_regular_file() || !has_image_name(entry.path())) continue;
    const auto [place, is_new] =
        paths.emplace(entry.path().stem().string(), entry.path().string());
    TORCH_CHECK_VALUE(is_new, entry.path().string(), ": has the same name as ",
                      place->second, "; remove one of them");
  }
  return paths;
}

}  // namespace

MaskFolder::MaskFolder(const std::string& root) try {
  TORCH_CHECK_VALUE(fs::is_directory(root), root, ": no such folder");
  const Paths images = list(root, "images");
  Paths masks = list(root, "masks");
  TORCH_CHECK_VALUE(!images.empty(), (fs::path(root) / "images").string(),
                    ": holds no .jpg, .jpeg or .png file");
  for (const auto& [name, path] : images) {
    const auto mask = masks.find(name);
    TORCH_CHECK_VALUE(mask != masks.end(), path, ": has no mask; add ",
                      (fs::path(root) / "masks" / name).string(),
                      ".png (or .jpg, .jpeg)");
    pairs_.push_back({path, mask->second});
    masks.erase(mask);
  }
  TORCH_CHECK_VALUE(masks.empty(), masks.begin()->second,
                    ": is a mask without an image; add ",
                    (fs::path(root) / "images" / masks.begin()->first).string(),
                    ".png (or .jpg, .jpeg), or remove the mask");
} catch (const fs::filesystem_error& error) {
  refuse_folder(root, error);
}

MaskedImage MaskFolder::get(int64_t index) const {
  const Pair& pair = pairs_.at(index);
  const at::Tensor image = read_image(pair.image);
  const at::Tensor mask = read_image(pair.mask).amax(0, /*keepdim=*/true);
  TORCH_CHECK_VALUE(
      mask.size(1) == image.size(1) && mask.size(2) == image.size(2), pair.mask,
      ": ", mask.size(2), "x", mask.size(1), " pixels, but its image ",
      pair.image, " has ", image.size(2), "x", image.size(1),
      "; bring both to the same size");
  const auto brightest = mask.max().item<int64_t>();
  TORCH_CHECK_VALUE(brightest != 1, pair.mask,
                    ": holds values 0 and 1 of 255; store 255 for the inside");
  const int64_t faintest = brightest == 0 ? max_of_16_bits(pair.mask) : 0;
  TORCH_CHECK_VALUE(faintest == 0, pair.mask, ": holds values up to ", faintest,
                    " of 65535; store 65535 for the inside");
  return {image, mask.ge(128)};
}

uint32_t MaskFolder::checksum() const {
  uint32_t sum = 0;
  for (const Pair& pair : pairs_) {
    for (const std::string& path : {pair.image, pair.mask}) {
      sum = checksum_of(fs::path(path).filename().string(), sum);
    }
  }
  return sum;
}

at::Tensor dice(const at::Tensor& logits, const at::Tensor& mask) {
  const at::Tensor found = logits.gt(0).to(at::kDouble).flatten(1);
  const at::Tensor inside = mask.to(found).flatten(1);
  const at::Tensor both = (found * inside).sum(1);
  const at::Tensor sum = found.sum(1) + inside.sum(1);
  return at::where(sum > 0, 2 * both / sum, at::ones_like(sum));
}

}  // namespace gpipe::data
