#include "training/data/discs.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "training/data/random.h"

namespace gpipe::data {

MaskedImage draw_disc(uint64_t seed) {
  constexpr int64_t kSide = 96;
  Random random(seed);
  const auto y = at::arange(kSide).view({1, kSide, 1});
  const auto x = at::arange(kSide).view({1, 1, kSide});
  const auto distance =
      at::hypot(y - random.uniform(0, kSide), x - random.uniform(0, kSide));
  const auto mask = distance < random.uniform(8, 32);
  const auto noise = at::randint(200, {3, kSide, kSide},
                                 at::detail::createCPUGenerator(random.next()));
  return {(noise + 50 * mask).to(at::kByte), mask};
}

}  // namespace gpipe::data
