// Files of tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "weights/state_dict.h"

namespace gpipe::testing {

// A new empty folder for the test that is running; its path ends with "/".
std::string new_folder();

void write_bytes(const std::string& path, std::string_view bytes);
std::string read_bytes(const std::string& path);

// The names of what is in a folder, in order.
std::vector<std::string> names_in(const std::string& folder);

// The text of the c10::Error that `body` throws, without a backtrace, or "no
// error". With ValueError: another c10::Error is not taken.
std::string error_of(const std::function<void()>& body);
std::string value_error_of(const std::function<void()>& body);

// Same dtype and shape, and the same bytes in logical order.
bool bit_equal(const at::Tensor& a, const at::Tensor& b);

std::vector<std::string> names_of(const StateDict& dict);

// Tensors of every dtype that the files know, scalars, empty ones and some with
// NaN, strides, offsets and shared memory. No complex128 and complex32 with
// `for_safetensors`.
StateDict every_kind_of_tensor(bool for_safetensors);

}  // namespace gpipe::testing
