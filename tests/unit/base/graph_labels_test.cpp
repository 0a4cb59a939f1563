#include "daemon/core/base/graph_labels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cgdebug {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

using Shape = std::vector<std::uint64_t>;

const Shape kScalar, k8x512{8, 512}, k16x512{16, 512}, k8x4{8, 4}, k16x4{16, 4};

GraphSlot Slot(std::uint64_t capture, std::uint64_t order, std::string_view probe,
               const Shape& shape, std::string_view label = {}) {
  return {.graph_id = capture, .order = order, .probe = probe, .shape = shape, .label = label};
}

TEST(GraphLabels, AreTheShapeOfTheFirstProbeInGraphOrder) {
  EXPECT_THAT(NameGraphsOf({Slot(7, 2, "b", k8x4), Slot(7, 1, "a", k8x512),
                            Slot(9, 3, "a", kScalar), Slot(0, 4, "eager", k8x4)}),
              ElementsAre(Pair(7, "8x512"), Pair(9, "scalar")));
}

TEST(GraphLabels, NameTheProbeThatDiffersWhereTheFirstIsEqual) {
  EXPECT_THAT(NameGraphsOf({Slot(1, 1, "w", k8x512), Slot(1, 2, "x@1", k8x4),
                            Slot(2, 3, "w", k8x512), Slot(2, 4, "x@1", k16x4)}),
              ElementsAre(Pair(1, "8x512"), Pair(2, "8x512,x_1=16x4")));
}

TEST(GraphLabels, EqualGraphsAreNumbered) {
  EXPECT_THAT(NameGraphsOf({Slot(1, 1, "a", k8x4), Slot(2, 2, "a", k8x4), Slot(3, 3, "a", k8x4)}),
              ElementsAre(Pair(1, "8x4"), Pair(2, "8x4#2"), Pair(3, "8x4#3")));
  EXPECT_THAT(NameGraphsOf({Slot(1, 1, "a", k8x4, "bs=8"), Slot(2, 2, "a", k16x4, "bs=8")}),
              ElementsAre(Pair(1, "bs=8"), Pair(2, "bs=8#2")));
}

TEST(GraphLabels, TheUsersLabelIsTakenFromAnySlotOfTheGraph) {
  EXPECT_THAT(NameGraphsOf({Slot(1, 1, "a", k8x4), Slot(1, 2, "b", k8x4, "bs=8")}),
              ElementsAre(Pair(1, "bs=8")));
}

TEST(GraphLabels, DoNotChangeWithGraphsThatComeLater) {
  std::vector<GraphSlot> slots{Slot(1, 1, "a", k8x512), Slot(2, 2, "a", k8x512)};
  const GraphLabels before = NameGraphsOf(slots);
  slots.push_back(Slot(3, 3, "a", k8x512));
  slots.push_back(Slot(4, 4, "a", k16x512));
  GraphLabels after = NameGraphsOf(slots);
  EXPECT_EQ(after.at(4), "16x512");
  after.erase(3);
  after.erase(4);
  EXPECT_EQ(after, before);
}

TEST(GraphLabels, LabelsOfGoneGraphsStayTaken) {
  EXPECT_THAT(NameGraphsOf({Slot(2, 2, "a", k8x4)}, {{1, "8x4"}}),
              ElementsAre(Pair(1, "8x4"), Pair(2, "8x4#2")));
}

TEST(SlotQualifiers, NameWhatIsNotTheSame) {
  const std::vector<GraphSlot> slots{Slot(1, 1, "a", k8x4),  Slot(2, 2, "a", k16x4),
                                     Slot(0, 3, "a", k8x4),  Slot(0, 4, "b", k8x4),
                                     Slot(0, 5, "b", k16x4), Slot(1, 6, "c", k8x4)};
  EXPECT_THAT(SlotQualifiers(slots, NameGraphsOf(slots)),
              ElementsAre("@g:8x4", "@g:16x4", "@g:eager", "{8,4}", "{16,4}", ""));
}

TEST(WhichSlots, MatchByLabelNumberAndShape) {
  EXPECT_TRUE(WhichSlots{}.Matches(0, "", k8x4));
  EXPECT_TRUE(WhichSlots{.graph = "bs=8"}.Matches(7, "bs=8", k8x4));
  EXPECT_TRUE(WhichSlots{.graph = "7"}.Matches(7, "bs=8", k8x4));
  EXPECT_FALSE(WhichSlots{.graph = "bs=8"}.Matches(0, "", k8x4));
  EXPECT_TRUE(WhichSlots{.graph = "eager"}.Matches(0, "", k8x4));
  EXPECT_FALSE(WhichSlots{.shape = k16x4}.Matches(0, "", k8x4));
}

TEST(ParseShape, TakesTheUsualSpellingsAndNothingElse) {
  for (const char* text : {"8,512", "8x512", "[8, 512]", "{8,512}"}) {
    EXPECT_EQ(ParseShape(text), k8x512) << text;
  }
  for (const char* text : {"scalar", "[]", "{}"}) EXPECT_EQ(ParseShape(text), kScalar) << text;
  for (const char* text : {"", "eight", "8,", "8;4", "-1", "[8", "8 4"}) {
    EXPECT_FALSE(ParseShape(text).has_value()) << text;
  }
}

TEST(AmbiguousReplay, NamesSomeAndSaysWhatToType) {
  EXPECT_EQ(AmbiguousReplay({"x"}, 3), "");
  EXPECT_EQ(AmbiguousReplay({"x{1}", "x{2}", "x{3}", "x{4}"}, 20),
            "4 shapes have @20: x{1}@20, x{2}@20, x{3}@20 and 1 more. Type for example: "
            "cgdebug-cli show 'x{1}@20'");
  EXPECT_TRUE(AmbiguousReplay({"x{1}", "x{2}"}, 2, "a.cgrec:", " --ranks 0")
                  .ends_with("cgdebug-cli show 'a.cgrec:x{1}@2' --ranks 0"));
}

}  // namespace
}  // namespace cgdebug
