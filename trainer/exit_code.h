// How a run ends, as the exit code of its process. No LibTorch.
#pragma once

namespace gpipe::trainer {

constexpr int kDone = 0;
constexpr int kWrongFlags = 1;  // or data
constexpr int kFailed = 2;
constexpr int kNotFinite = 3;  // a loss or a gradient
constexpr int kSignal = 128;   // and the signal's number

}  // namespace gpipe::trainer
