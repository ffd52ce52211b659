// Draws images with masks, so that a training run needs no download.
#pragma once

#include <cstdint>

#include "training/data/mask_folder.h"

namespace gpipe::data {

// Returns an image of 96x96 pixels: a disc of random size and place, a little
// brighter than the noise around it. The same seed gives the same image.
// Thread-safe.
MaskedImage draw_disc(uint64_t seed);

}  // namespace gpipe::data
