#include "gpipe/skip/namespace.h"

#include <gtest/gtest.h>

#include <set>
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
