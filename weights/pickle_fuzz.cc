// Any bytes as a pickle, and its tensors on storages of a few bytes.
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weights/fuzz_driver.h"
#include "weights/pickle.h"
#include "weights/pickled_tensors.h"
#include "weights/testing/fixtures.h"
#include "weights/testing/fuzz_checks.h"

namespace {

// As large as is asked for, up to what such an archive could have.
c10::Storage small_storage(const std::string&, int64_t bytes) {
  return {c10::Storage::use_byte_size_t(), std::min<int64_t>(bytes, 1 << 10),
          c10::GetCPUAllocator(),
          /*resizable=*/false};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  gpipe::testing::check_reader(size, [&] {
    const gpipe::Pickle pickle(
        std::string_view(reinterpret_cast<const char*>(data), size));
    return gpipe::tensors_of(pickle.value(), small_storage);
  });
  return 0;
}

std::vector<std::string> gpipe::fuzz_seeds() {
  using namespace gpipe::testing;  // NOLINT: the fixtures
  std::vector<std::string> seeds;
  for (const std::string_view seed :
       {kStridedPickle, kEvilPickle, kPickle3, kPickle4, kPickle5}) {
    seeds.emplace_back(seed);
  }
  seeds.push_back(pickle_tensors({
      {"weight", "0", 24, at::kFloat, 0, {2, 3}, {3, 1}},
      {"weight.T", "0", 24, at::kFloat, 0, {3, 2}, {1, 3}},
      {"last", "1", 64, at::kLong, 7, {}, {}},
      {"float8", "2", 8, at::kFloat8_e5m2, 4, {2, 2}, {2, 1}},
  }));
  // {"state_dict": {...}, "epoch": 3} of a whole file.
  const std::size_t begin = kNestedFile.find("\x80\x02}");
  seeds.emplace_back(
      kNestedFile.substr(begin, kNestedFile.find("PK", begin) - begin));
  return seeds;
}

// A pickle that has lost its STOP.
void gpipe::fuzz_repair(std::string& bytes) {
  if (bytes.empty() || bytes.back() != '.') bytes += '.';
}
