#include "training/data/open.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "training/data/cifar10.h"
#include "training/data/image_folder.h"
#include "training/data/mnist.h"

namespace gpipe::data {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> cifar_batches(const fs::path& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("data_batch_", 0) == 0 &&
        entry.path().extension() == ".bin") {
      paths.push_back(entry.path().string());
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

Split open_images(const std::string& folder, double held_out, uint64_t seed) {
  TORCH_CHECK_VALUE(fs::is_directory(folder), folder, ": no such folder");
  const fs::path root(folder);
  if (const auto batches = cifar_batches(root); !batches.empty()) {
    const std::vector<std::string> test{(root / "test_batch.bin").string()};
    return {std::make_shared<Cifar10>(batches),
            std::make_shared<Cifar10>(test)};
  }
  if (auto mnist = find_mnist(folder)) return *std::move(mnist);
  if (fs::is_directory(root / "train")) {
    for (const char* name : {"test", "val"}) {
      if (!fs::is_directory(root / name)) continue;
      Split split{std::make_shared<ImageFolder>((root / "train").string()),
                  std::make_shared<ImageFolder>((root / name).string())};
      TORCH_CHECK_VALUE(split.train->classes() == split.test->classes(), folder,
                        ": train has ", split.train->classes().size(),
                        " classes, ", name, " has ",
                        split.test->classes().size(),
                        "; both need the same class folders");
      return split;
    }
    TORCH_CHECK_VALUE(false, folder,
                      ": has train/, but neither test/ nor val/");
  }
  const auto all = std::make_shared<ImageFolder>(folder);
  return hold_out(all, all->labels(), held_out, seed);
}

}  // namespace gpipe::data
