#include "daemon/core/base/suggest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cgdebug {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(EditDistance, CountsEditsAndSwaps) {
  EXPECT_EQ(EditDistance("kitten", "sitting", 9), 3u);
  EXPECT_EQ(EditDistance("", "abc", 9), 3u);
  EXPECT_EQ(EditDistance("attn", "atnt", 9), 1u);
  EXPECT_EQ(EditDistance("ATTN", "attn", 9), 0u);
}

TEST(EditDistance, StopsAboveLimit) {
  EXPECT_EQ(EditDistance("aaaaaaaa", "bbbbbbbb", 2), 3u);
  EXPECT_EQ(EditDistance("a", "abcdefgh", 2), 3u);
  EXPECT_EQ(EditDistance("ab", "ba", 0), 1u);
}

TEST(EditDistance, SwapAcrossRowAtLimitIsFound) { EXPECT_EQ(EditDistance("xyab", "xyba", 1), 1u); }

TEST(CloseNames, ContainingComesBeforeMisspelt) {
  const std::vector<std::string> names = {"blk0.x_norm", "loss", "x_embed", "y"};
  EXPECT_THAT(CloseNames("x", names), ElementsAre("x_embed", "blk0.x_norm", "y"));
}

TEST(CloseNames, FindsTypo) {
  const std::vector<std::string> names = {"blk3.attn", "blk3.mlp", "loss"};
  EXPECT_THAT(CloseNames("blk3.atnt", names, 1), ElementsAre("blk3.attn"));
  EXPECT_THAT(CloseNames("!re:^losss$", names), ElementsAre("loss"));
  EXPECT_THAT(CloseNames("*mpl", std::vector<std::string>{"mlp"}), ElementsAre("mlp"));
}

TEST(CloseNames, NothingCloseIsEmpty) {
  const std::vector<std::string> names = {"blk3.attn"};
  EXPECT_THAT(CloseNames("optimizer", names), IsEmpty());
  EXPECT_THAT(CloseNames("*", names), IsEmpty());
  EXPECT_THAT(CloseNames("", names), IsEmpty());
}

TEST(DidYouMean, ListsEachOnce) {
  const std::vector<std::string> names = {"status", "status", "stats"};
  EXPECT_EQ(DidYouMean("statsu", names), " Close: 'status', 'stats'.");
  EXPECT_EQ(DidYouMean("zzzzzzzz", names), "");
}

}  // namespace
}  // namespace cgdebug
