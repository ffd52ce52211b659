// Statistics of repeated measurements. Does not include LibTorch.
#pragma once

#include <vector>

namespace gpipe::benchmarks {

// Returns the mean, or 0 if there are no values.
double mean(const std::vector<double>& values);

// Returns the median, or 0 if there are no values.
double median(std::vector<double> values);

// Returns the standard deviation of the sample (divisor n - 1), or 0 if there
// are fewer than two values.
double deviation(const std::vector<double>& values);

}  // namespace gpipe::benchmarks
