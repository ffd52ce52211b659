// Of repeated measurements. No LibTorch.
#pragma once

#include <vector>

namespace gpipe::benchmarks {

// Each 0 for no values; deviation() (of the sample, n - 1) 0 for one value.
double mean(const std::vector<double>& values);
double median(std::vector<double> values);
double deviation(const std::vector<double>& values);

}  // namespace gpipe::benchmarks
