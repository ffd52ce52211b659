// The workloads of the papers' tables: random data of the right shapes, losses,
// and rows with the names of the papers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "benchmarks/harness/experiment/benchmark.h"
#include "benchmarks/harness/experiment/experiment.h"

namespace gpipe::benchmarks {

// The units of published memory, in bytes.
constexpr double kGB = 1e9;
constexpr double kGiB = 1024.0 * 1024 * 1024;

// The number of classes in all tables with images and classes.
constexpr int64_t kImageNetClasses = 1000;

// How long a workload is trained: members of Workload.
struct Length {
  int64_t samples_per_epoch = 0, epochs = 0, skip_epochs = 0;
};

// Returns `workload` with experiments and epochs.
Workload with_rows(Workload workload, std::vector<Experiment> experiments,
                   const Length& length);

// The following functions return workloads without experiments and epochs.

// Returns a workload of random images [rows, 3, size, size] and classes [rows].
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

// Returns a row of torchgpipe's tables or of GPipe's table 1. Its name is
// "baseline" for 0 partitions (the plain model), otherwise "pipeline-4". All
// micro-batches but the last are recomputed.
Experiment pipeline_row(int64_t partitions, int64_t batch_size, int64_t chunks,
                        const std::vector<int64_t>& balance);

// Returns a row of GPipe's table 2. Its name consists of the partitions and
// micro-batches: "n2m32". As in torchgpipe's version of the table, a single
// micro-batch is recomputed; of several, all but the last are.
Experiment table_2_row(int64_t partitions, int64_t chunks);

// Returns a row of GPipe's table 3: "p100-n4", in 32 micro-batches. Its
// speed-up is relative to "p100-n2".
Experiment table_3_row(int64_t partitions);

}  // namespace gpipe::benchmarks
