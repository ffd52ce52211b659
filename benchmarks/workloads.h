// What the papers' tables train on: made up data of the right shapes, and its
// losses.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/experiment.h"

namespace gpipe::benchmarks {

// Units of published memory.
constexpr double kGB = 1e9;
constexpr double kGiB = 1024.0 * 1024 * 1024;

// Of all tables on images of classes.
constexpr int64_t kImageNetClasses = 1000;

// Random images, [rows, 3, size, size], and their classes, [rows].
Workload images_of_classes(int64_t size, int64_t classes);

// Random images as before, and of each pixel whether it belongs to a thing,
// [rows, 1, size, size]: always (torchgpipe's unet-speed), or by a random
// probability (its unet-memory).
enum class Mask { kOnes, kRandom };
Workload images_with_masks(int64_t size, Mask mask);

// Random tokens, [rows, length], and random ones that come next, of the same
// shape.
Workload tokens(int64_t length, int64_t vocabulary);

// The mean of the cross entropy of logits [..., classes] and classes [...].
at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target);

// The mean over pixels of the cross entropy of logits and probabilities.
at::Tensor mask_loss(const at::Tensor& output, const at::Tensor& target);

// The experiments for a few CPU cores: one mini-batch for all, in `chunks`
// unless it is in one, so that rows differ in nothing but the pipeline, and cut
// by measured time. `sizes`, if there are any: Experiment::size of each.
std::vector<Experiment> reduced(
    std::vector<Experiment> experiments, int64_t batch_size, int64_t chunks,
    const std::vector<std::vector<int64_t>>& sizes = {});

}  // namespace gpipe::benchmarks
