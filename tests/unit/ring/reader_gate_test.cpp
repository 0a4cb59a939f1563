// How long a writer waits: for a live reader, at most one deadline for a hung one, and never
// without a reader.
#include "libprobe/ring/reader_gate.h"

#include <gtest/gtest.h>

#include <thread>

#include "libprobe/ring/credit.h"
#include "libprobe/ring/shared_copy.h"
#include "tests/support/child_process.h"
#include "tests/support/ring/ring_fixture.h"

namespace cgdebug::ring {
namespace {

using std::chrono::milliseconds;

class Gate : public ::testing::Test {
 protected:
  ~Gate() override { segment_.Close(/*unlink=*/true); }

  test::Slot Slot(std::uint64_t order, milliseconds deadline) {
    auto registration = test::MakeSlot("a", 1, 1, layout::Policy::kWait);
    registration.order = order;
    registration.wait_deadline_ms = static_cast<std::uint32_t>(deadline.count());
    return test::PublishSlot(segment_, registration);
  }
  SlotRingWriter Writer(const test::Slot& slot) {
    return SlotRingWriter(slot.block.data, segment_.producer(), segment_.gate());
  }
  // A daemon that attaches and then consumes slot 0 up to the ordinal it is told, refuses or
  // accepts slot 1, or ends at "".
  test::ChildProcess Daemon() {
    return test::ChildProcess([name = segment_.name()](const test::Line& line) {
      std::string reason;
      const auto view = SegmentView::Attach(name, &reason);
      if (view == nullptr || !view->BecomeReader()) return 1;
      auto slot = view->OpenSlot(0, &reason);
      line.Send("ready");
      for (std::string text = line.Receive(); !text.empty(); text = line.Receive()) {
        if (text == "refuse") {
          view->Refuse(1);
        } else if (text == "accept") {
          view->Accept(1);
        } else {
          const std::uint64_t ordinal = std::stoull(text);
          while (slot->accepted() < ordinal) std::this_thread::yield();
          slot->SetConsumed(ordinal, 0);
          view->AddProgress(1);
        }
        line.Send("done");
      }
      return 0;
    });
  }

  SegmentWriter segment_{Identity{}};
};

TEST_F(Gate, NobodyIsWaitedForWhenNoDaemonEverCame) {
  const auto slot = Slot(1, milliseconds(60'000));
  SlotRingWriter writer = Writer(slot);
  for (int i = 1; i <= 5; ++i) test::WriteNumbers(writer, i);
  const layout::SlotHead head = segment_.OpenSlot(slot.index, slot.block).head();
  EXPECT_EQ(head.overwrote_unread, 4u);
  EXPECT_EQ(head.waits, 0u);
  EXPECT_EQ(head.wait_ns, 0u);
}

TEST_F(Gate, ALiveReaderIsWaitedForAndNothingIsLost) {
  const auto slot = Slot(1, milliseconds(60'000));
  SlotRingWriter writer = Writer(slot);
  auto daemon = Daemon();
  ASSERT_EQ(daemon.line().Receive(), "ready");
  test::WriteNumbers(writer, 1);
  for (int i = 1; i <= 20; ++i) {
    daemon.line().Send(std::to_string(i));
    test::WriteNumbers(writer, i + 1);  // needs entry i to be consumed
    ASSERT_EQ(daemon.line().Receive(), "done");
  }
  EXPECT_EQ(segment_.OpenSlot(slot.index, slot.block).head().overwrote_unread, 0u);
}

TEST_F(Gate, AHungReaderCostsOneDeadlineForAllSlotsTogether) {
  const auto a = Slot(1, milliseconds(150));
  const auto b = Slot(2, milliseconds(150));
  SlotRingWriter writer_a = Writer(a);
  SlotRingWriter writer_b = Writer(b);
  auto daemon = Daemon();
  ASSERT_EQ(daemon.line().Receive(), "ready");
  for (int i = 1; i <= 20; ++i) {
    test::WriteNumbers(writer_a, i);
    test::WriteNumbers(writer_b, i);
  }
  const layout::SlotHead head_a = segment_.OpenSlot(a.index, a.block).head();
  const layout::SlotHead head_b = segment_.OpenSlot(b.index, b.block).head();
  EXPECT_EQ(head_a.overwrote_unread, 19u);
  EXPECT_EQ(head_b.overwrote_unread, 19u);
  EXPECT_EQ(head_a.waits, 1u);
  EXPECT_GE(head_a.wait_ns, 150'000'000u);
  EXPECT_EQ(head_b.waits, 0u);
}

TEST_F(Gate, ASlotThatNobodyReadsCostsOneDeadlineWhileItsNeighbourIsRead) {
  const auto read = Slot(1, milliseconds(60'000));
  const auto unread = Slot(2, milliseconds(100));
  SlotRingWriter writer_read = Writer(read);
  SlotRingWriter writer_unread = Writer(unread);
  auto daemon = Daemon();
  ASSERT_EQ(daemon.line().Receive(), "ready");
  for (int i = 1; i <= 20; ++i) {
    test::WriteNumbers(writer_read, i);
    daemon.line().Send(std::to_string(i));  // the reader moves between any two of its replays
    ASSERT_EQ(daemon.line().Receive(), "done");
    test::WriteNumbers(writer_unread, i);
  }
  const layout::SlotHead head = segment_.OpenSlot(unread.index, unread.block).head();
  EXPECT_EQ(head.overwrote_unread, 19u);
  EXPECT_EQ(head.waits, 1u);
  EXPECT_EQ(segment_.OpenSlot(read.index, read.block).head().overwrote_unread, 0u);
}

TEST_F(Gate, ARefusedSlotIsNotWaitedForUntilItIsAccepted) {
  const auto slot = Slot(1, milliseconds(60'000));
  const auto refused = Slot(2, milliseconds(60'000));
  SlotRingWriter writer = Writer(refused);
  const SlotRingReader reader = segment_.OpenSlot(refused.index, refused.block);
  auto daemon = Daemon();
  ASSERT_EQ(daemon.line().Receive(), "ready");
  test::WriteNumbers(writer, 1);
  std::thread waiting([&] { test::WriteNumbers(writer, 2); });
  while (reader.replay() < 2) std::this_thread::yield();
  daemon.line().Send("refuse");  // ends a wait that has begun
  ASSERT_EQ(daemon.line().Receive(), "done");
  waiting.join();
  for (int i = 3; i <= 10; ++i) test::WriteNumbers(writer, i);
  EXPECT_EQ(reader.head().overwrote_unread, 9u);
  EXPECT_LE(reader.head().waits, 1u);
  EXPECT_LT(reader.head().wait_ns, 30'000'000'000u);
  daemon.line().Send("accept");
  ASSERT_EQ(daemon.line().Receive(), "done");
  std::thread again([&] { test::WriteNumbers(writer, 11); });
  while (reader.replay() < 11) std::this_thread::yield();
  daemon.Kill();
  again.join();
  EXPECT_GT(reader.head().waits, 0u) << "it was waited for until its reader died";
  (void)slot;
}

// Writers that wait side by side stop together, when the first of them gives up.
TEST_F(Gate, WritersInParallelShareOneDeadline) {
  const auto a = Slot(1, milliseconds(100));
  const auto b = Slot(2, milliseconds(60'000));
  SlotRingWriter writer_a = Writer(a);
  SlotRingWriter writer_b = Writer(b);
  auto daemon = Daemon();
  ASSERT_EQ(daemon.line().Receive(), "ready");
  test::WriteNumbers(writer_a, 1);
  test::WriteNumbers(writer_b, 1);
  std::thread other([&] { test::WriteNumbers(writer_b, 2); });
  test::WriteNumbers(writer_a, 2);
  other.join();
  EXPECT_EQ(segment_.OpenSlot(a.index, a.block).accepted(), 2u);
  EXPECT_LT(segment_.OpenSlot(b.index, b.block).head().wait_ns, 30'000'000'000u);
}

TEST_F(Gate, AReaderThatMovesAgainIsWaitedForAgain) {
  const auto slot = Slot(1, milliseconds(2'000));  // it moves within that, on any machine
  SlotRingWriter writer = Writer(slot);
  auto daemon = Daemon();
  ASSERT_EQ(daemon.line().Receive(), "ready");
  for (int i = 1; i <= 3; ++i) test::WriteNumbers(writer, i);
  const SlotRingReader reader = segment_.OpenSlot(slot.index, slot.block);
  EXPECT_EQ(reader.head().waits, 1u);
  daemon.line().Send("3");
  ASSERT_EQ(daemon.line().Receive(), "done");
  test::WriteNumbers(writer, 4);
  daemon.line().Send("4");
  test::WriteNumbers(writer, 5);
  ASSERT_EQ(daemon.line().Receive(), "done");
  EXPECT_EQ(reader.head().overwrote_unread, 2u) << "none since it moves";
}

TEST_F(Gate, ADeadReaderCostsNothingAndItsSuccessorIsWaitedFor) {
  const auto slot = Slot(1, milliseconds(60'000));
  SlotRingWriter writer = Writer(slot);
  const SlotRingReader reader = segment_.OpenSlot(slot.index, slot.block);
  {
    auto daemon = Daemon();
    ASSERT_EQ(daemon.line().Receive(), "ready");
  }
  for (int i = 1; i <= 10; ++i) test::WriteNumbers(writer, i);
  EXPECT_EQ(reader.head().overwrote_unread, 9u);
  EXPECT_EQ(reader.head().waits, 0u);
  auto next = Daemon();
  ASSERT_EQ(next.line().Receive(), "ready");
  next.line().Send("10");
  test::WriteNumbers(writer, 11);
  ASSERT_EQ(next.line().Receive(), "done");
  EXPECT_EQ(reader.head().overwrote_unread, 9u);
}

TEST_F(Gate, AReaderThatDiesInTheMiddleOfAWaitEndsIt) {
  const auto slot = Slot(1, milliseconds(60'000));
  SlotRingWriter writer = Writer(slot);
  auto daemon = Daemon();
  ASSERT_EQ(daemon.line().Receive(), "ready");
  test::WriteNumbers(writer, 1);
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(20));
    daemon.Kill();
  });
  test::WriteNumbers(writer, 2);
  killer.join();
  const layout::SlotHead head = segment_.OpenSlot(slot.index, slot.block).head();
  EXPECT_EQ(head.overwrote_unread, 1u);
  EXPECT_LT(head.wait_ns, 30'000'000'000u);
}

// --- the credit ---------------------------------------------------------------------------------

// A daemon that is stopped after it read the directory stores its credit when the block belongs to
// another slot.
TEST_F(Gate, ALateCreditDoesNotPassForTheBlocksNextSlot) {
  const auto first = Slot(1, milliseconds(0));
  SlotRingReader stale = segment_.OpenSlot(first.index, first.block);
  segment_.Release(first.index, first.block);
  const auto second = Slot(2, milliseconds(0));
  ASSERT_EQ(second.block.offset, first.block.offset);
  stale.SetConsumed(1000, 7);
  Verdict pass;
  pass.state = layout::VerdictState::kPass;
  pass.compared = 1000;
  stale.SetVerdict(pass);
  SlotRingReader reader = segment_.OpenSlot(second.index, second.block);
  EXPECT_EQ(reader.consumed(), 0u);
  EXPECT_EQ(reader.credit().consumed, 0u);
  EXPECT_EQ(reader.credit().lost, 0u);
  EXPECT_EQ(reader.verdict().state, layout::VerdictState::kNone);
  EXPECT_EQ(reader.verdict().compared, 0u);
  SlotRingWriter writer = Writer(second);
  test::WriteNumbers(writer, 1);
  test::WriteNumbers(writer, 2);
  EXPECT_EQ(reader.head().overwrote_unread, 1u) << "it was not consumed, and that is counted";
  reader.SetConsumed(2, 1);
  EXPECT_EQ(reader.consumed(), 2u);
  EXPECT_EQ(reader.credit().lost, 1u);
}

TEST_F(Gate, AVerdictsTextIsCutWhereACharacterEnds) {
  const auto slot = Slot(1, milliseconds(0));
  SlotRingReader reader = segment_.OpenSlot(slot.index, slot.block);
  Verdict fail;
  fail.text = std::string(layout::kVerdictTextBytes - 1, 'x') + "é";
  reader.SetVerdict(fail);
  EXPECT_EQ(reader.verdict().text, std::string(layout::kVerdictTextBytes - 1, 'x'));
}

}  // namespace
}  // namespace cgdebug::ring
