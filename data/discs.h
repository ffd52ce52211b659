// Images with masks made by a program, so that a training run needs no
// download.
#pragma once

#include <cstdint>

#include "data/mask_folder.h"

namespace gpipe::data {

// A disc of any size at any place, little brighter than the noise around it; 96
// x 96 pixels. The same for the same seed. Threads: any.
MaskedImage draw_disc(uint64_t seed);

}  // namespace gpipe::data
