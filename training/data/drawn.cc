#include "training/data/drawn.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "training/data/random.h"

namespace gpipe::data {

// ---- Labelled images

namespace {

// A class of shapes. `inside` returns whether (x, y) is inside; the shape lies
// within [-1, 1] in both coordinates.
struct Shape {
  const char* name;
  bool (*inside)(double x, double y);
};

constexpr Shape kShapes[] = {
    {"cross",
     [](double x, double y) {
       return std::min(std::abs(x), std::abs(y)) < 0.3;
     }},
    {"diamond",
     [](double x, double y) { return std::abs(x) + std::abs(y) < 1; }},
    {"disc", [](double x, double y) { return std::hypot(x, y) < 1; }},
    {"frame",
     [](double x, double y) {
       return std::max(std::abs(x), std::abs(y)) > 0.6;
     }},
    {"ring",
     [](double x, double y) {
       return std::hypot(x, y) < 1 && std::hypot(x, y) > 0.6;
     }},
    {"square", [](double, double) { return true; }},
    {"stripes", [](double, double y) { return std::cos(9 * y) > 0; }},
    {"triangle", [](double x, double y) { return 2 * std::abs(x) < y + 1; }},
};
constexpr auto kClasses = static_cast<int64_t>(std::size(kShapes));

}  // namespace

Shapes::Shapes(int64_t images, int64_t size, uint64_t seed)
    : images_(images), side_(size), seed_(seed) {
  TORCH_CHECK_VALUE(images > 0 && size > 0, "cannot draw ", images,
                    " images of ", size, "x", size);
}

LabelledImage Shapes::get(int64_t index) const {
  Random random(mix_seed(seed_, static_cast<uint64_t>(index)));
  const int64_t label = index % kClasses;
  const auto side = static_cast<double>(side_);
  const double radius = side * random.uniform(0.25, 0.4);
  const double centre_x = random.uniform(radius, side - radius);
  const double centre_y = random.uniform(radius, side - radius);
  double paper[3];
  double ink[3];
  for (int channel = 0; channel < 3; ++channel) {
    paper[channel] = random.uniform(0, 255);
    // The difference to the paper is large enough to be visible in every
    // channel.
    ink[channel] = std::fmod(paper[channel] + random.uniform(90, 165), 255);
  }

  at::Tensor image = at::empty({3, side_, side_}, at::kByte);
  auto* out = image.mutable_data_ptr<uint8_t>();
  for (int channel = 0; channel < 3; ++channel) {
    for (int64_t row = 0; row < side_; ++row) {
      for (int64_t column = 0; column < side_; ++column) {
        const double x = (static_cast<double>(column) - centre_x) / radius;
        const double y = (static_cast<double>(row) - centre_y) / radius;
        const bool inked = std::max(std::abs(x), std::abs(y)) <= 1 &&
                           kShapes[label].inside(x, y);
        const double value =
            (inked ? ink : paper)[channel] + random.uniform(-20, 20);
        *out++ = static_cast<uint8_t>(std::clamp(value, 0.0, 255.0));
      }
    }
  }
  return {image, label};
}

const std::vector<std::string>& Shapes::classes() const {
  static const auto* const names = [] {
    auto* names = new std::vector<std::string>;
    for (const Shape& shape : kShapes) names->push_back(shape.name);
    return names;
  }();
  return *names;
}

uint32_t Shapes::checksum() const {
  return static_cast<uint32_t>(mix_seed(seed_, images_, side_));
}

// ---- Images with masks

MaskedImage draw_disc(uint64_t seed) {
  constexpr int64_t kSide = 96;
  Random random(seed);
  const auto y = at::arange(kSide).view({1, kSide, 1});
  const auto x = at::arange(kSide).view({1, 1, kSide});
  const double centre_y = random.uniform(0, kSide);
  const double centre_x = random.uniform(0, kSide);
  const auto distance = at::hypot(y - centre_y, x - centre_x);
  const auto mask = distance < random.uniform(8, 32);
  const auto noise = at::randint(200, {3, kSide, kSide},
                                 at::detail::createCPUGenerator(random.next()));
  return {(noise + 50 * mask).to(at::kByte), mask};
}

}  // namespace gpipe::data
