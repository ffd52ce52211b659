// Folders of transformers, read and written by two processes.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <sstream>

#include "gpipe/base/crc32c.h"
#include "gpipe/base/instruments.h"
#include "gpipe/distributed/gather.h"
#include "gpipe/distributed/pipeline.h"
#include "gpipe/distributed/testing/ranks.h"
#include "models/exported/exported.h"
#include "models/testing/files.h"
#include "models/weights/hugging_face.h"
#include "models/weights/safetensors.h"

namespace gpipe {
namespace {

using instruments::CountingAllocator;
using testing::names_in;
using testing::read_bytes;

constexpr char kFolder[] = "models/weights/testdata/llama";
constexpr char kProgram[] = "models/weights/testdata/llama.pt2";

at::Tensor input() {
  return read_safetensors("models/weights/testdata/llama.safetensors")
      .tensors["input"];
}

uint32_t checksum_of(const at::Tensor& output) {
  const at::Tensor values = output.contiguous();
  return internal::crc32c(values.const_data_ptr(), values.nbytes());
}

std::vector<int64_t> balance() {
  const auto layers =
      static_cast<int64_t>(load_exported(kProgram).layers->size());
  return {layers / 2, layers - layers / 2};
}

// Loads this rank's part, evaluates, and saves it together with the other rank.
int load_and_save() {
  at::set_num_threads(1);
  CountingAllocator::install();
  CountingAllocator::ignore_other_threads();
  const auto world = World::connect(testing::world_options());
  StateDict own;
  int64_t read = 0, allocated = 0;
  DistributedPipeline pipeline(
      [&](int64_t first, int64_t count) {
        ExportedModel part = load_exported(kProgram, first, count,
                                           ExportedOptions().weights(false));
        CountingAllocator::reset_peak();
        const int64_t before = CountingAllocator::live_bytes();
        read =
            testing::bytes_read_by([&] { load_hugging_face(kFolder, part); });
        allocated = CountingAllocator::peak_bytes() - before;
        own = part.state_dict();
        return part.layers;
      },
      DistributedOptions(balance()).threads(1), world);
  int64_t bytes = 0;
  for (const auto& item : own) {
    if (item.key() == "model.lm_head.weight") continue;  // tied
    bytes += static_cast<int64_t>(item.value().nbytes());
  }
  std::cout << "tensors " << bytes << " others " << read - bytes
            << " allocated " << allocated << "\n";
  pipeline->eval();
  const auto output = pipeline->forward<at::Tensor>(input());
  if (output) std::cout << "output " << checksum_of(*output) << "\n";

  const RunShard shard{world->rank(), world->size(),
                       [&](const std::string& mine) {
                         return all_gather(*world, mine, "save");
                       }};
  save_hugging_face(testing::argument("folder"), own, 3000, shard);
  std::cout << testing::error_of([&] {
    save_hugging_face(
        testing::argument("folder") + std::to_string(world->rank()), own, 3000,
        shard);
  }) << "\n";
  if (world->rank() == 1) own.insert("bad", at::Tensor());
  std::cout << testing::error_of([&] {
    save_hugging_face(testing::argument("folder"), own, 3000, shard);
  }) << "\n";
  return 0;
}

const testing::RankProgramEntry kLoadAndSave("load and save", load_and_save);

TEST(HuggingFaceProcessesTest, EachReadsItsOwnBytesAndAllSaveOneFolder) {
  at::set_num_threads(1);
  ExportedModel model = load_exported(kProgram);
  load_hugging_face(kFolder, model);
  model.layers->eval();
  const std::string output =
      "output " +
      std::to_string(checksum_of(model.layers->forward<at::Tensor>(input())));

  const std::string folder = testing::new_folder();
  const auto results =
      testing::Ranks("load and save", 2, {{"folder", folder}}).wait();
  testing::expect_all_ok(results);
  EXPECT_NE(results[1].out.find("\n" + output + "\n"), std::string::npos)
      << output << "\n"
      << results[1].out;

  // Besides its own tensors, each process reads the index and the headers.
  int64_t others = 0, all = 0;
  for (const std::string& name : names_in(kFolder)) {
    others += static_cast<int64_t>(
        read_bytes(kFolder + std::string("/") + name).size());
  }
  for (const auto& item : read_hugging_face(kFolder)) {
    all += static_cast<int64_t>(item.value().nbytes());
  }
  others -= all;
  int64_t sum = 0;
  for (const auto& result : results) {
    std::istringstream line(result.out);
    std::string word;
    int64_t tensors = 0, rest = 0, allocated = -1;
    line >> word >> tensors >> word >> rest >> word >> allocated;
    EXPECT_GT(tensors, all / 4);
    EXPECT_LT(tensors, 3 * all / 4);
    EXPECT_EQ(rest, others);
    EXPECT_EQ(allocated, 0);  // tensors are read into those of the model
    sum += tensors;
    EXPECT_NE(result.out.find("process 1 of 2: 'bad' is undefined"),
              std::string::npos)
        << result.out;
    EXPECT_NE(result.out.find("process 1 of 2 has another folder, " + folder +
                              "1, than process 0"),
              std::string::npos)
        << result.out;
  }
  EXPECT_EQ(sum, all);

  EXPECT_EQ(names_in(folder).back(), "model.safetensors.index.json");
  ExportedModel again = load_exported(kProgram);
  load_hugging_face(folder, again);
  testing::expect_equal(again.state_dict(), model.state_dict());
}

}  // namespace
}  // namespace gpipe
