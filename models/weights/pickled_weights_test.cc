#include "models/weights/pickled_weights.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "models/weights/testing/files.h"

namespace gpipe::internal {
namespace {

using namespace std::string_literals;  // "..."s literals may contain \0
using testing::value_error_of;

std::string short_text(const std::string& text) {
  return "\x8c" + std::string(1, static_cast<char>(text.size())) + text;
}

// Returns the pickle of a dict, without STOP. Each value is a pickle as well.
std::string dict(
    const std::vector<std::pair<std::string, std::string>>& items) {
  std::string bytes = "}";
  for (const auto& [key, value] : items) {
    bytes += short_text(key) + value + "s";
  }
  return bytes;
}

// Returns the pickle of a dict of tensors with these names. Each tensor has two
// elements.
std::string tensors(const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, std::string>> items;
  for (const std::string& name : names) {
    items.emplace_back(name, "ctorch._utils\n_rebuild_tensor_v2\n((" +
                                 short_text("storage") +
                                 "ctorch\nFloatStorage\n" + short_text("0") +
                                 short_text("cpu") +
                                 "K\x02tQK\0K\x02\x85K\x01\x85\x89N"s + "tR");
  }
  return dict(items);
}

// Returns the name of the first tensor of the dict that is found, or the text
// of the error.
std::string found(const std::string& bytes, std::string_view entry = {}) {
  std::string name;
  const std::string error = value_error_of([&] {
    const std::string whole = bytes + ".";
    const Pickle pickle(whole);
    const PickleValue& weights = weights_in(pickle.value(), entry);
    for (std::size_t k = 0; k < weights.items.size() && name.empty(); k += 2) {
      if (weights.items[k + 1]->kind == PickleValue::Kind::kTensor) {
        name = weights.items[k]->text;
      }
    }
  });
  return name.empty() ? error : name;
}

// Returns a dict with a tensor of this name, beside a tensor in its parent.
std::string beside_tensor(const std::string& entry, const std::string& name) {
  const std::string rest = tensors({"rng_state"});
  return rest + short_text(entry) + tensors({name}) + "s";
}

TEST(PickledWeightsTest, ATensorBesideTheWeightsDoesNotHideThem) {
  for (const char* entry :
       {"state_dict", "model_state_dict", "model", "module", "net"}) {
    EXPECT_EQ(found(beside_tensor(entry, "w")), "w") << entry;
  }
}

TEST(PickledWeightsTest, KnownEntriesComeFirstAlsoInOneAnother) {
  const std::string w = tensors({"w"}), v = tensors({"v.x"});
  EXPECT_EQ(found(dict({{"a.b", "N"}, {"ema", v}, {"model", w}})), "w");
  EXPECT_EQ(found(dict({{"model", v}, {"state_dict", w}})), "w");
  EXPECT_EQ(found(dict({{"model", dict({{"module", w}})}, {"ema", v}})), "w");
  EXPECT_EQ(found(dict({{"model", "]"}, {"module", dict({})}, {"net", w}})),
            "w");
  EXPECT_EQ(found(tensors({"fc.weight"}) + short_text("model") + w + "s"), "w");
}

TEST(PickledWeightsTest, NamesOfParametersSayThatADictIsAStateDict) {
  for (const char* name : {"fc.mask", "weight", "bias"}) {
    EXPECT_EQ(
        found(tensors({name}) + short_text("extra") + tensors({"x"}) + "s"),
        name);
  }
  EXPECT_EQ(found(tensors({"w", "v"})), "w");
  EXPECT_EQ(found(tensors({"w"}) + short_text("extra") + "}s"), "w");
  // Keys that are not texts.
  EXPECT_EQ(found("}K\x01" + tensors({"x"}) + "s" + short_text("net") +
                  tensors({"w"}) + "s")
                .substr(0, 28),
            "holds several dicts of tenso");
}

TEST(PickledWeightsTest, AnEntryCanBeNamed) {
  const std::string g = tensors({"g"}), d = tensors({"d"});
  const std::string two = dict({{"G", g}, {"D", d}, {"epoch", "K\x03"}});
  EXPECT_EQ(found(two),
            "holds several dicts of tensors. Name the entry to read: 'G' (1 "
            "tensors), 'D' (1 tensors)");
  EXPECT_EQ(found(two, "D"), "d");
  EXPECT_EQ(found(two, "E"),
            "has no entry 'E'; what there is: 'G' (a dict), 'D' (a dict), "
            "'epoch' (an int). Name the entry to read: 'G' (1 tensors), 'D' (1 "
            "tensors)");
  EXPECT_EQ(found(two, "epoch").substr(0, 82),
            "entry 'epoch' holds no dict of tensors, as "
            "torch.save(model.state_dict(), path) wr");
  const std::string nested =
      dict({{"state", dict({{"nets", "(" + g + d + "l"}, {"a/b", g}})}});
  EXPECT_EQ(found(nested, "state/nets/1"), "d");
  EXPECT_EQ(found(nested, "state/a/b"), "g");
  EXPECT_EQ(found(nested, "state/nets/2").substr(0, 22),
            "has no entry 'state/ne");
  EXPECT_EQ(found(nested),
            "holds no dict of tensors, as torch.save(model.state_dict(), path) "
            "writes it; what there is: 'state' (a dict). Name the entry to "
            "read: 'state/a/b' (1 tensors), 'state/nets/0' (1 tensors), "
            "'state/nets/1' (1 tensors)");
  EXPECT_EQ(found("(" + g + d + "t"),
            "holds no dict of tensors, as torch.save(model.state_dict(), path) "
            "writes it; what there is: a tuple. Name the entry to read: '0' (1 "
            "tensors), '1' (1 tensors)");
  EXPECT_EQ(found("(" + g + d + "t", "1"), "d");
  EXPECT_EQ(found("}K\x07" + g + "s", "7"), "g");
  // The rules hold in the named entry, too, and "." is the whole.
  EXPECT_EQ(found(dict({{"x", dict({{"model", g}, {"n", "N"}})}}), "x"), "g");
  EXPECT_EQ(found(beside_tensor("model", "w"), "."), "rng_state");
  EXPECT_EQ(found(dict({{"model", g}}), "."), "g");
}

TEST(PickledWeightsTest, SaysWhatThereIs) {
  EXPECT_EQ(found(dict({{"model", "cnets\nNet\n)R"}, {"epoch", "K\x03"}})),
            "holds no dict of tensors, as torch.save(model.state_dict(), path) "
            "writes it; what there is: 'model' ('nets.Net'), 'epoch' (an int)");
  EXPECT_EQ(found("cnets\nNet\n)R"),
            "holds no dict of tensors, as torch.save(model.state_dict(), path) "
            "writes it; what there is: 'nets.Net'");
  EXPECT_EQ(found("}"),
            "holds no dict of tensors, as torch.save(model.state_dict(), path) "
            "writes it; what there is: nothing");
}

TEST(PickledWeightsTest, CirclesAndMassesTakeLittleTime) {
  // Every known entry is the dict itself.
  std::string circle = "}q\0"s;
  for (const char* name :
       {"state_dict", "model_state_dict", "model", "module", "other"}) {
    circle += short_text(name) + "h\0s"s;
  }
  EXPECT_EQ(found(circle).substr(0, 24), "holds no dict of tensors");
  // One dict of 50,000 items, held 50,000 times; and many lists.
  std::string inner = "}q\x01(", outer = "}(";
  for (int k = 0; k < 50000; ++k) {
    inner += "NN";
    outer += "]h\x01";
  }
  EXPECT_EQ(found(dict({{"a", inner + "u"},
                        {"b", outer + "u"},
                        {"c", "(" + std::string(50000, ']') + "l"}}))
                .substr(0, 24),
            "holds no dict of tensors");
}

}  // namespace
}  // namespace gpipe::internal
