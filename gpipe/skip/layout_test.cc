#include "gpipe/skip/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>
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

// Returns a model of layers such as "+foo -bar", which stashes foo and pops
// bar.
Model model_of(const Names& layers) {
  Model model;
  for (const std::string& layer : layers) {
    Names stash, pop;
    std::istringstream words(layer);
    for (std::string word; words >> word;) {
      (word[0] == '+' ? stash : pop).push_back(word.substr(1));
    }
    model.add(stash, pop);
  }
  return model;
}

TEST(Mismatches, AreAllListed) {
  const auto stashed_again = [](const std::string& layer) {
    return "'" + layer +
           "' redeclared 'foo' as stashable but not isolated by namespace";
  };
  const auto popped_again = [](const std::string& layer) {
    return "'" + layer +
           "' redeclared 'foo' as poppable but not isolated by namespace";
  };
  const std::string never_stashed =
      "'0' declared 'foo' as poppable but it was not stashed";
  const std::string never_popped =
      "no module declared 'foo' as poppable but stashed";
  const std::pair<Names, Names> cases[] = {
      {{}, {}},
      {{"+foo", "-foo"}, {}},
      {{"+foo", "+bar -foo", "-bar"}, {}},
      {{"+foo"}, {never_popped}},
      {{"-foo"}, {never_stashed}},
      {{"-foo", "+foo"}, {never_stashed, never_popped}},
      {{"+foo", "+foo", "-foo"}, {stashed_again("1")}},
      {{"+foo", "-foo", "-foo"}, {popped_again("2")}},
      {{"+foo -foo"}, {"'0' declared 'foo' both as stashable and as poppable"}},
      {{"+foo", "-foo", "+foo", "-foo"},
       {stashed_again("2"), popped_again("3")}}};
  for (const auto& [layers, mismatches] : cases) {
    EXPECT_EQ(model_of(layers).mismatches(), mismatches)
        << ::testing::PrintToString(layers);
  }
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

// By destination, then by source, and not by pop. None is inside a partition.
TEST(Routes, AreOrdered) {
  struct Case {
    Names layers;
    std::vector<int64_t> balance;
    Names routes;
  };
  const Case cases[] = {
      {{"", ""}, {1, 1}, {}},
      {{"+foo", "-foo"}, {2}, {}},
      {{"+foo", "-foo"}, {1, 1}, {"0->1 foo"}},
      {{"+foo", "", "-foo"}, {1, 1, 1}, {"0->2 foo"}},
      {{"+foo", "+bar", "-bar -foo"}, {1, 1, 1}, {"0->2 foo", "1->2 bar"}},
      {{"+foo", "+bar", "-bar -foo"}, {2, 1}, {"0->1 foo", "0->1 bar"}},
      {{"+a +b +c", "+d -b", "-c", "-a -d"},
       {1, 1, 1, 1},
       {"0->1 b", "0->2 c", "0->3 a", "1->3 d"}}};
  for (const Case& each : cases) {
    EXPECT_EQ(model_of(each.layers).routes(each.balance), each.routes)
        << ::testing::PrintToString(each.layers);
  }
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
  const auto model = model_of({"+a +b +c", "+d -b", "-a -c -d"});
  std::vector<std::string> numbers;
  for (const SkipRoute& route : skip_routes(model.layers(), {1, 1, 1})) {
    numbers.push_back(route.key.name + std::to_string(route.exported) +
                      std::to_string(route.imported));
  }
  EXPECT_THAT(numbers, ElementsAre("b00", "a10", "c21", "d02"));
}

}  // namespace
}  // namespace gpipe::internal
