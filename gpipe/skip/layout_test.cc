#include "gpipe/skip/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

namespace gpipe {
namespace {

TEST(Namespace, DiffersFromEveryOther) {
  const Namespace a, b;
  EXPECT_TRUE(a != b);
  EXPECT_FALSE(a == b);
  EXPECT_TRUE(a != Namespace::none());
}

TEST(Namespace, IsEqualToItsCopies) {
  const Namespace a;
  const Namespace copy = a;
  Namespace assigned;
  assigned = a;
  EXPECT_TRUE(a == copy);
  EXPECT_FALSE(a != copy);
  EXPECT_TRUE(a == assigned);
  EXPECT_EQ(a.hash(), copy.hash());
  EXPECT_TRUE(Namespace::none() == Namespace::none());
}

TEST(Namespace, IsOrderedByCreation) {
  const Namespace a, b;
  EXPECT_TRUE(a < b);
  EXPECT_FALSE(b < a);
  EXPECT_FALSE(a < a);
  EXPECT_TRUE(Namespace::none() < a);
}

TEST(Namespace, IsAKeyOfSets) {
  const Namespace a, b;
  EXPECT_EQ((std::set<Namespace>{a, b, a}).size(), 2u);
  EXPECT_EQ((std::unordered_set<Namespace>{a, b, a}).size(), 2u);
}

TEST(Namespace, MayBeMadeOnAnyThread) {
  std::vector<std::vector<Namespace>> made(4);
  std::vector<std::thread> threads;
  for (auto& list : made) {
    threads.emplace_back([&list] { list.resize(1000); });
  }
  for (auto& thread : threads) thread.join();
  std::set<Namespace> all;
  for (const auto& list : made) all.insert(list.begin(), list.end());
  EXPECT_EQ(all.size(), 4000u);
}

TEST(SkipKey, IsOrderedByNamespaceAndThenByName) {
  const Namespace ns;
  const SkipKey plain{Namespace::none(), "z"}, a{ns, "a"}, b{ns, "b"};
  EXPECT_TRUE(plain < a);
  EXPECT_TRUE(a < b);
  EXPECT_FALSE(b < a);
  EXPECT_TRUE(a == (SkipKey{ns, "a"}));
  EXPECT_FALSE(a == (SkipKey{Namespace(), "a"}));
}

}  // namespace
}  // namespace gpipe

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Names = std::vector<std::string>;

// A model whose layers are named by their numbers, as in a Sequential.
class Model {
 public:
  Model& add(const Names& stash, const Names& pop,
             Namespace ns = Namespace::none()) {
    LayerSkips layer;
    layer.layer = std::to_string(layers_.size());
    for (const auto& name : stash) layer.stash.push_back({ns, name});
    for (const auto& name : pop) layer.pop.push_back({ns, name});
    layers_.push_back(layer);
    return *this;
  }
  Names mismatches() const { return skip_mismatches(layers_); }
  // Returns the routes in order, each as "0->2 foo".
  Names routes(const std::vector<int64_t>& balance) const {
    Names result;
    for (const SkipRoute& route : skip_routes(layers_, balance)) {
      result.push_back(std::to_string(route.from) + "->" +
                       std::to_string(route.to) + " " + route.key.name);
    }
    return result;
  }
  const std::vector<LayerSkips>& layers() const { return layers_; }

 private:
  std::vector<LayerSkips> layers_;
};

TEST(Mismatches, NoneInAPair) {
  EXPECT_THAT(Model().add({"foo"}, {}).add({}, {"foo"}).mismatches(),
              IsEmpty());
  EXPECT_THAT(Model().mismatches(), IsEmpty());
}

TEST(Mismatches, StashedAndNotPopped) {
  EXPECT_THAT(Model().add({"foo"}, {}).mismatches(),
              ElementsAre("no module declared 'foo' as poppable but stashed"));
}

TEST(Mismatches, PoppedAndNotStashed) {
  EXPECT_THAT(
      Model().add({}, {"foo"}).mismatches(),
      ElementsAre("'0' declared 'foo' as poppable but it was not stashed"));
}

TEST(Mismatches, PoppedBeforeItIsStashed) {
  EXPECT_THAT(
      Model().add({}, {"foo"}).add({"foo"}, {}).mismatches(),
      ElementsAre("'0' declared 'foo' as poppable but it was not stashed",
                  "no module declared 'foo' as poppable but stashed"));
}

TEST(Mismatches, StashedTwice) {
  EXPECT_THAT(
      Model().add({"foo"}, {}).add({"foo"}, {}).add({}, {"foo"}).mismatches(),
      ElementsAre("'1' redeclared 'foo' as stashable but not isolated by "
                  "namespace"));
}

TEST(Mismatches, PoppedTwice) {
  EXPECT_THAT(
      Model().add({"foo"}, {}).add({}, {"foo"}).add({}, {"foo"}).mismatches(),
      ElementsAre("'2' redeclared 'foo' as poppable but not isolated by "
                  "namespace"));
}

TEST(Mismatches, NoneWhereALayerPopsOneAndStashesAnother) {
  EXPECT_THAT(Model()
                  .add({"foo"}, {})
                  .add({"bar"}, {"foo"})
                  .add({}, {"bar"})
                  .mismatches(),
              IsEmpty());
}

TEST(Mismatches, StashedAndPoppedByTheSameLayer) {
  EXPECT_THAT(
      Model().add({"foo"}, {"foo"}).mismatches(),
      ElementsAre("'0' declared 'foo' both as stashable and as poppable"));
}

TEST(Mismatches, AreAllListed) {
  EXPECT_THAT(Model()
                  .add({"foo"}, {})
                  .add({}, {"foo"})
                  .add({"foo"}, {})
                  .add({}, {"foo"})
                  .mismatches(),
              ElementsAre("'2' redeclared 'foo' as stashable but not isolated "
                          "by namespace",
                          "'3' redeclared 'foo' as poppable but not isolated "
                          "by namespace"));
}

TEST(Mismatches, NoneBetweenNamespaces) {
  const Namespace first, second;
  EXPECT_THAT(Model()
                  .add({"foo"}, {}, first)
                  .add({"foo"}, {}, second)
                  .add({}, {"foo"}, first)
                  .add({}, {"foo"}, second)
                  .mismatches(),
              IsEmpty());
}

TEST(Routes, NoneWithoutSkips) {
  EXPECT_THAT(Model().add({}, {}).add({}, {}).routes({1, 1}), IsEmpty());
}

TEST(Routes, NoneInsideOfAPartition) {
  EXPECT_THAT(Model().add({"foo"}, {}).add({}, {"foo"}).routes({2}), IsEmpty());
}

TEST(Routes, BetweenNeighbours) {
  EXPECT_THAT(Model().add({"foo"}, {}).add({}, {"foo"}).routes({1, 1}),
              ElementsAre("0->1 foo"));
}

TEST(Routes, PastPartitionsBetween) {
  EXPECT_THAT(
      Model().add({"foo"}, {}).add({}, {}).add({}, {"foo"}).routes({1, 1, 1}),
      ElementsAre("0->2 foo"));
}

TEST(Routes, AreOrderedBySourceAndNotByPop) {
  const auto model =
      Model().add({"foo"}, {}).add({"bar"}, {}).add({}, {"bar", "foo"});
  EXPECT_THAT(model.routes({1, 1, 1}), ElementsAre("0->2 foo", "1->2 bar"));
  EXPECT_THAT(model.routes({2, 1}), ElementsAre("0->1 foo", "0->1 bar"));
}

TEST(Routes, KeepNamespacesApart) {
  const Namespace first, second;
  const auto model = Model()
                         .add({"foo"}, {}, first)
                         .add({"foo"}, {}, second)
                         .add({}, {"foo"}, second)
                         .add({}, {"foo"}, first);
  const auto routes = skip_routes(model.layers(), {1, 1, 2});
  ASSERT_EQ(routes.size(), 2u);
  EXPECT_TRUE(routes[0].key == (SkipKey{first, "foo"}));
  EXPECT_EQ(routes[0].from, 0);
  EXPECT_EQ(routes[0].to, 2);
  EXPECT_TRUE(routes[1].key == (SkipKey{second, "foo"}));
  EXPECT_EQ(routes[1].from, 1);
  EXPECT_EQ(routes[1].to, 2);
}

TEST(Routes, AreNumberedAtBothEnds) {
  const auto model = Model()
                         .add({"a", "b", "c"}, {})
                         .add({"d"}, {"b"})
                         .add({}, {"a", "c", "d"});
  std::vector<std::string> numbers;
  for (const SkipRoute& route : skip_routes(model.layers(), {1, 1, 1})) {
    numbers.push_back(route.key.name + std::to_string(route.exported) +
                      std::to_string(route.imported));
  }
  EXPECT_THAT(numbers, ElementsAre("b00", "a10", "c21", "d02"));
}

TEST(Routes, AreOrderedByDestinationFirst) {
  EXPECT_THAT(Model()
                  .add({"a", "b", "c"}, {})
                  .add({"d"}, {"b"})
                  .add({}, {"c"})
                  .add({}, {"a", "d"})
                  .routes({1, 1, 1, 1}),
              ElementsAre("0->1 b", "0->2 c", "0->3 a", "1->3 d"));
}

}  // namespace
}  // namespace gpipe::internal
