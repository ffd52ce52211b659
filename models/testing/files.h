// Reads, writes and compares files of weights in tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "models/weights/state_dict.h"

namespace gpipe::testing {

// Creates an empty folder for the running test and returns its path, which ends
// with "/".
std::string new_folder();

void write_bytes(const std::string& path, std::string_view bytes);
std::string read_bytes(const std::string& path);

// Returns the path of a file of fuzz_corpus/, such as "pickle.strided". For
// what make_fixtures.py writes there, see this program.
std::string corpus_file(const std::string& name);
// Returns the pickle "pickle." + `name` there.
std::string pickle_of_python(const std::string& name);

// Returns how many bytes this process reads with system calls during `body`.
int64_t bytes_read_by(const std::function<void()>& body);

// Returns the names of all entries of a folder, sorted.
std::vector<std::string> names_in(const std::string& folder);

// Returns the text of the error that `body` throws, without a backtrace, or "no
// error". error_of() catches any c10::Error, value_error_of() only a
// c10::ValueError; other exceptions pass through.
std::string error_of(const std::function<void()>& body);
std::string value_error_of(const std::function<void()>& body);

// Runs `body` with a limit on the size of files, which stands in for a full
// disk: write() writes a part of the bytes and then fails.
void with_file_limit(uint64_t bytes, const std::function<void()>& body);

// Returns whether dtype, shape and the bytes in logical order are equal.
bool bit_equal(const at::Tensor& a, const at::Tensor& b);

// Expects that both have the same names, in the same order, with equal bits.
void expect_equal(const StateDict& a, const StateDict& b);

// Returns the same tensors in the order of their names, as Python writes them.
StateDict sorted(const StateDict& dict);

// Returns a dict of the same names with changed tensors, copies by default.
StateDict copy_of(
    const StateDict& dict,
    const std::function<at::Tensor(const at::Tensor&)>& change =
        [](const at::Tensor& each) { return each.clone(); });

// Returns tensors of every dtype that the file formats support, and scalars,
// empty tensors, NaN, strides, offsets and shared memory. With
// `for_safetensors` the dict has no complex128 and no complex32.
StateDict every_kind_of_tensor(bool for_safetensors);

}  // namespace gpipe::testing
