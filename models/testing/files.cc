#include "models/testing/files.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <utility>

#include "gpipe/testing/thrown.h"

namespace gpipe::testing {

std::string new_folder() {
  static int count = 0;
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string folder = ::testing::TempDir() + "gpipe_" + test->name() +
                             "_" + std::to_string(count++) + "/";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string read_bytes(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(bytes).str();
}

std::string corpus_file(const std::string& name) {
  return "models/testing/fuzz_corpus/" + name;
}

std::string pickle_of_python(const std::string& name) {
  return read_bytes(corpus_file("pickle." + name));
}

namespace {

// Returns the bytes that this process has read with system calls.
int64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string name;
  int64_t bytes = 0;
  file >> name >> bytes;
  return bytes;
}

}  // namespace

int64_t bytes_read_by(const std::function<void()>& body) {
  const int64_t begin = bytes_read();
  const int64_t of_counting = bytes_read() - begin;
  body();
  return bytes_read() - begin - 2 * of_counting;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

std::string error_of(const std::function<void()>& body) {
  return thrown<c10::Error>(body);
}

std::string value_error_of(const std::function<void()>& body) {
  return thrown<c10::ValueError>(body);
}

void with_file_limit(uint64_t bytes, const std::function<void()>& body) {
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit low { bytes, before.rlim_max };
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  body();
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
}

bool bit_equal(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) {
    return false;
  }
  const at::Tensor x = a.detach().cpu().contiguous();
  const at::Tensor y = b.detach().cpu().contiguous();
  return x.nbytes() == 0 ||
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

void expect_equal(const StateDict& a, const StateDict& b) {
  ASSERT_EQ(a.keys(), b.keys());
  for (const auto& item : a) {
    EXPECT_TRUE(bit_equal(item.value(), b[item.key()])) << item.key();
  }
}

StateDict sorted(const StateDict& dict) {
  std::vector<std::string> names = dict.keys();
  std::ranges::sort(names);
  StateDict result;
  for (const std::string& name : names) result.insert(name, dict[name]);
  return result;
}

StateDict copy_of(const StateDict& dict,
                  const std::function<at::Tensor(const at::Tensor&)>& change) {
  StateDict result;
  for (const auto& item : dict) {
    result.insert(item.key(), change(item.value()));
  }
  return result;
}

namespace {

// Returns a tensor with bytes 0, 1, 0, 1, ... for bool, else 0, 37, 74, ..., so
// that many different values occur.
at::Tensor bytes_as(at::ScalarType dtype, at::IntArrayRef sizes) {
  at::Tensor tensor = at::empty(sizes, at::TensorOptions(dtype));
  auto* bytes = static_cast<uint8_t*>(tensor.mutable_data_ptr());
  for (std::size_t k = 0; k < tensor.nbytes(); ++k) {
    bytes[k] = static_cast<uint8_t>(dtype == at::kBool ? k % 2 : 37 * k);
  }
  return tensor;
}

}  // namespace

StateDict every_kind_of_tensor(bool for_safetensors) {
  StateDict dict;
  for (const at::ScalarType dtype : {at::kBool,
                                     at::kByte,
                                     at::kChar,
                                     at::kShort,
                                     at::kInt,
                                     at::kLong,
                                     at::kHalf,
                                     at::kBFloat16,
                                     at::kFloat,
                                     at::kDouble,
                                     at::kComplexFloat,
                                     at::kComplexDouble,
                                     at::kComplexHalf,
                                     at::kUInt16,
                                     at::kUInt32,
                                     at::kUInt64,
                                     at::kFloat8_e4m3fn,
                                     at::kFloat8_e4m3fnuz,
                                     at::kFloat8_e5m2,
                                     at::kFloat8_e5m2fnuz,
                                     at::kFloat8_e8m0fnu,
                                     at::kFloat4_e2m1fn_x2}) {
    const bool lacks = dtype == at::kComplexDouble || dtype == at::kComplexHalf;
    if (for_safetensors && lacks) continue;
    dict.insert(std::string("dtype.") + c10::toString(dtype),
                bytes_as(dtype, {3, 5}));
  }
  dict.insert("scalar", at::full({}, 7, at::TensorOptions(at::kLong)));
  dict.insert("empty", at::empty({0, 4}));
  dict.insert("nan", at::full({2}, std::numeric_limits<float>::quiet_NaN()));
  const at::Tensor base = at::arange(24, at::TensorOptions(at::kFloat));
  dict.insert("base", base);
  dict.insert("part", base.narrow(0, 4, 12).view({3, 4}).t());
  dict.insert("every second", base.slice(0, 1, 24, 2));
  dict.insert("one for all", base.narrow(0, 3, 1).expand({2, 3}));
  dict.insert("ünïcode \"quoted\"\n", at::full({1}, 1.0));
  return dict;
}

}  // namespace gpipe::testing
