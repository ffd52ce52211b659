// The workloads of the papers' tables: random data of the right shapes, and the
// losses.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/experiment.h"

namespace gpipe::benchmarks {

// The units of published memory, in bytes.
constexpr double kGB = 1e9;
constexpr double kGiB = 1024.0 * 1024 * 1024;

// The number of classes in all tables with images and classes.
constexpr int64_t kImageNetClasses = 1000;

// Returns a workload of random images [rows, 3, size, size] and classes [rows].
// It has no experiments and epochs; the caller adds them.
Workload images_of_classes(int64_t size, int64_t classes);

// The mask of an image: the probability that a pixel belongs to an object. It
// is 1 (torchgpipe's unet-speed) or random (torchgpipe's unet-memory).
enum class Mask { kOnes, kRandom };

// Returns a workload of random images [rows, 3, size, size] and masks [rows, 1,
// size, size].
Workload images_with_masks(int64_t size, Mask mask);

// Returns a workload of random tokens [rows, length] and random next tokens of
// the same shape.
Workload tokens(int64_t length, int64_t vocabulary);

// Returns the mean cross entropy of logits [..., classes] and classes [...].
at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target);

// Returns the mean binary cross entropy over all pixels, of logits and
// probabilities.
at::Tensor mask_loss(const at::Tensor& output, const at::Tensor& target);

// Returns the experiments at reduced size, for a few CPU cores: all with the
// same `batch_size`, and in `chunks` micro-batches if they had several. So rows
// differ only in the pipeline. Balances are removed: the layers are cut by
// measured time.
//
// `sizes`: the Experiment::size of each experiment, or empty.
std::vector<Experiment> reduced(
    std::vector<Experiment> experiments, int64_t batch_size, int64_t chunks,
    const std::vector<std::vector<int64_t>>& sizes = {});

}  // namespace gpipe::benchmarks
