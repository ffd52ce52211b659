// The exit codes of a training run. No LibTorch.
#pragma once

namespace gpipe::train_program {

constexpr int kDone = 0;
constexpr int kWrongFlags = 1;  // a flag or the data is wrong
constexpr int kFailed = 2;
constexpr int kNotFinite = 3;  // a loss or a gradient is NaN or infinite
constexpr int kSignal = 128;   // plus the number of the signal

}  // namespace gpipe::train_program
