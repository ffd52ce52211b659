#include "models/resnet_names.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/resnet.h"
#include "models/weights/state_dict.h"

namespace gpipe::models {
namespace {

std::vector<std::string> firsts(const NameTable& table) {
  std::vector<std::string> names;
  for (const auto& each : table) names.push_back(each.first);
  return names;
}

TEST(ResNetNamesTest, AreThoseOfOurModelsInTheirOrder) {
  EXPECT_EQ(firsts(torchvision_resnet101_names()),
            state_dict(*resnet101(3)).keys());
  EXPECT_EQ(firsts(torchvision_resnet50_names()),
            state_dict(*resnet50(3)).keys());
}

// tools/python_checks/weights_python_check.sh compares all names with
// torchvision's.
TEST(ResNetNamesTest, AreTorchvisionsOnTheOtherSide) {
  const std::vector<std::string> names =
      firsts(inverse(torchvision_resnet101_names()));
  ASSERT_EQ(names.size(), 626u);
  EXPECT_EQ(names.front(), "conv1.weight");
  EXPECT_EQ(names[5], "bn1.num_batches_tracked");
  EXPECT_EQ(names[6], "layer1.0.conv1.weight");
  EXPECT_EQ(names.back(), "fc.bias");
  for (const char* name :
       {"layer1.0.downsample.0.weight", "layer3.22.bn3.running_var",
        "layer4.0.downsample.1.num_batches_tracked", "layer4.2.conv3.weight"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  }
  EXPECT_EQ(torchvision_resnet50_names().size(), 320u);
}

TEST(ResNetNamesTest, LeadThereAndBack) {
  auto from = resnet50(3);
  auto to = resnet50(3);
  const NameTable names = torchvision_resnet50_names();
  const StateDict theirs = rename(state_dict(*from), names);
  EXPECT_TRUE(theirs.contains("layer1.0.conv1.weight"));
  load_state_dict(*to, rename(theirs, inverse(names)));
  const StateDict a = state_dict(*from);
  const StateDict b = state_dict(*to);
  for (std::size_t k = 0; k < a.size(); ++k) {
    EXPECT_TRUE(a[k].value().equal(b[k].value())) << a[k].key();
  }
}

}  // namespace
}  // namespace gpipe::models
