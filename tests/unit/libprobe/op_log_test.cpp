// The op log on CPU tensors: real segment, no daemon.
#include "libprobe/op_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "daemon/core/numerics/device_stats.h"
#include "daemon/core/numerics/stats.h"
#include "libprobe/capture/graph/capture_nodes.h"
#include "libprobe/host_stats.h"
#include "libprobe/page_cut.h"
#include "libprobe/ring/segment/segment_view.h"
#include "libprobe/session.h"
#include "tests/support/child_process.h"
#include "tests/support/ring/probe_fixture.h"
#include "tests/support/wait_until.h"

namespace cgdebug {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using test::Cpu;
using test::ErrorText;

const bool kNoDaemon = [] { return test::ForbidDaemon(), true; }();

TEST(KernelName, IsWhatOneWouldCallTheKernel) {
  using capture::ShortKernelName;
  EXPECT_EQ(ShortKernelName("_ZN5flash16flash_fwd_kernelINS_6TraitsELb1EEEvNS_6ParamsE"),
            "flash_fwd_kernel");
  EXPECT_EQ(ShortKernelName("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEE"
                            "St5arrayIPcLm1EEEEviT0_T1_"),
            "vectorized_elementwise_kernel");
  EXPECT_EQ(ShortKernelName("triton_poi_fused_add_0"), "triton_poi_fused_add_0");
  EXPECT_EQ(ShortKernelName("odd name,*"), "name__");
  EXPECT_EQ(ShortKernelName(std::string(200, 'x')).size(), capture::kMostNodeName);
  EXPECT_TRUE(capture::IsOwnKernel("_ZN7cgdebug7capture12_GLOBAL__N_110OpLogPartsE"));
  EXPECT_FALSE(capture::IsOwnKernel("triton_poi_fused_add_0"));
}

// What a reader finds in one page.
struct Page {
  layout::SlotRegistration registration;
  std::vector<ring::OpLogRow> rows;
  std::uint64_t accepted = 0;
  std::vector<layout::DeviceStats> newest;
  std::uint64_t serial = 0;  // of the newest
};

void ReadPages(const std::string& segment, std::vector<Page>* pages) {
  std::string reason;
  const auto view = ring::SegmentView::Attach(segment, &reason);
  ASSERT_NE(view, nullptr) << reason;
  for (std::uint32_t index = 0; index < view->slot_count(); ++index) {
    const auto ring = view->OpenSlot(index, &reason);
    if (!ring || ring->retired()) continue;
    Page page;
    page.registration = ring->registration();
    ASSERT_NE(page.registration.flags & layout::kSlotHoldsOpLog, 0u);
    const auto rows = view->ReadOpLog(page.registration, &reason);
    ASSERT_TRUE(rows) << reason;
    page.rows = *rows;
    page.accepted = ring->accepted();
    ring::Entry entry;
    ASSERT_EQ(ring->Read(page.accepted, &entry), ring::ReadStatus::kOk);
    page.serial = entry.serial;
    page.newest.resize(rows->size());
    std::memcpy(page.newest.data(), entry.payload.data(), entry.payload.size());
    pages->push_back(std::move(page));
  }
}

// Calls expect(pages) in a child: a process cannot open its own segment as a reader does.
template <typename Function>
void ExpectInSegment(Function&& expect) {
  const std::string name = CurrentSession()->name;
  const int code = test::InChild([&] {
    std::vector<Page> pages;
    ReadPages(name, &pages);
    std::ranges::sort(pages, {}, [](const Page& page) { return page.registration.order; });
    expect(pages);
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(code, 0);
}

TEST(EagerCalls, ThatOfTheModelIsThatOfTheLogWhicheverBeginsFirst) {
  EagerCalls calls;
  const EagerCall row = calls.BeginRun(/*step=*/5);
  EXPECT_EQ(row.number, 1u);
  EXPECT_EQ(calls.Begin(/*step=*/6).number, 1u)
      << "the log began it with what the batch is made of";
  EXPECT_EQ(calls.Latest().step, 5) << "as it was when the call began";
  calls.EndRun(row);
  EXPECT_EQ(calls.Begin(6).number, 2u);
  EXPECT_EQ(calls.BeginRun(7).number, 2u);
  EXPECT_EQ(calls.BeginRun(7).number, 3u) << "the rows of a call are of one log";
}

TEST(EagerCalls, AModuleThatIsCalledByItselfInANewStepIsOfTheCallThatBeginsNext) {
  EagerCalls calls;
  const auto call = [&](std::int64_t step) { calls.CallModule(step, /*is_main_thread=*/true); };
  call(0);
  EXPECT_EQ(calls.Latest().number, 0u) << "nobody follows calls";
  calls.SetFollowed(true);
  call(-1);
  EXPECT_EQ(calls.Latest().number, 0u) << "without steps nobody knows";
  calls.CallModule(0, /*is_main_thread=*/false);
  EXPECT_EQ(calls.Latest().number, 0u);
  call(0);
  EXPECT_EQ(calls.Begin(0).number, 1u);
  calls.SetStep(1);
  call(1);
  EXPECT_EQ(calls.Latest().number, 1u) << "the model runs";
  calls.End();
  call(1);
  EXPECT_EQ(calls.Latest().number, 1u) << "the step was set while it ran";
  calls.SetStep(2);
  EXPECT_EQ(calls.Latest().number, 1u) << "its backward pass may come";
  for (int i = 0; i < 2; ++i) call(2);
  EXPECT_EQ(calls.Latest().number, 2u);
  EXPECT_EQ(calls.Latest().step, 2);
  EXPECT_EQ(calls.Begin(2).number, 2u) << "the model that it belongs to";
  calls.End();
  EXPECT_EQ(calls.Begin(2).number, 3u);
  calls.Leave();
  call(4);
  EXPECT_EQ(calls.Latest().number, 0u) << "compiled code tells of no call";
}

TEST(EagerCalls, AThreadWithoutCallsIsInThatOfTheOneThreadThatHasSome) {
  EagerCalls calls;
  EXPECT_EQ(calls.LatestOfJob().number, 0u);
  const auto elsewhere = [&calls] {
    EagerCall seen;
    std::thread([&] { seen = calls.LatestOfJob(); }).join();
    return seen;
  };
  EXPECT_EQ(elsewhere().number, 0u);
  calls.Begin(/*step=*/7);
  calls.End();
  EXPECT_EQ(elsewhere().number, 1u);
  EXPECT_EQ(elsewhere().step, 7);
  calls.Begin(/*step=*/8);
  EXPECT_EQ(elsewhere().number, 2u);
  EXPECT_EQ(calls.LatestOfJob().number, 2u);
  std::thread([&calls] { calls.Begin(/*step=*/9); }).join();
  EXPECT_EQ(elsewhere().number, 0u) << "nobody knows of which of the two it is";
  EXPECT_EQ(calls.LatestOfJob().number, 2u);
}

TEST(EagerCalls, EachThreadHasItsOwnAndTheyShareTheNumbers) {
  EagerCalls calls;
  EXPECT_EQ(calls.Begin(0).number, 1u);
  std::thread([&] {
    EXPECT_EQ(calls.Latest().number, 0u);
    EXPECT_EQ(calls.Begin(1).number, 2u);
  }).join();
  EXPECT_EQ(calls.Latest().number, 1u);
  EXPECT_TRUE(calls.IsRunning());
  calls.End();
  EXPECT_FALSE(calls.IsRunning());
  EXPECT_EQ(calls.Latest().number, 1u) << "its backward pass comes";
  calls.Leave();
  EXPECT_EQ(calls.Latest().number, 0u);
}

TEST(EagerCalls, ACallHasTheNumberOfItsThreadWhichIsUsedAgainWhenThatHasEnded) {
  EagerCalls calls;
  EXPECT_EQ(calls.Begin(0).thread, 1u) << "the main one";
  std::uint32_t first = 0, inner = 0, later = 0;
  std::thread([&] {
    first = calls.Begin(0).thread;
    std::thread([&] { inner = calls.BeginRun(0).thread; }).join();
    EXPECT_EQ(calls.Begin(0).thread, first);
  }).join();
  std::thread([&] { later = calls.Begin(0).thread; }).join();
  EXPECT_EQ(std::tuple(first, inner, later), std::tuple(2u, 3u, 2u));
  EXPECT_EQ(calls.Begin(0).thread, 1u);
}

TEST(EagerCalls, MoreThreadsThanAreCountedAgainHaveNumbersOfTheirOwn) {
  EagerCalls calls;
  constexpr std::ptrdiff_t kThreads = 100;
  std::barrier all_began(kThreads);
  std::vector<std::uint32_t> numbers(kThreads);
  std::vector<std::thread> threads;
  for (std::uint32_t& number : numbers) {
    threads.emplace_back([&] {
      number = calls.Begin(0).thread;
      all_began.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<std::uint32_t>(numbers.begin(), numbers.end()).size(), numbers.size());
}

TEST(OpLog, ARunIsOneEntryWithARowForEachTensor) {
  OpLog log;
  log.Add({"fwd/mm", "net.py:3", "1 aten.mm"}, Cpu({1, -2, 5}), nullptr);
  log.Add({"fwd/relu", "net.py:4", "2 aten.relu 1"}, Cpu({1, 0}), nullptr);
  log.End();
  ExpectInSegment([](const std::vector<Page>& pages) {
    ASSERT_THAT(pages, SizeIs(1));
    const Page& page = pages[0];
    EXPECT_EQ(page.registration.graph_id, 0u);
    EXPECT_EQ(page.accepted, 1u);
    ASSERT_THAT(page.rows, SizeIs(2));
    EXPECT_EQ(page.rows[1].name, "fwd/relu");
    EXPECT_EQ(page.rows[1].site, "net.py:4");
    EXPECT_EQ(page.rows[1].op, "2 aten.relu 1");
    EXPECT_THAT(page.rows[1].shape, ElementsAre(2));
    EXPECT_NE(page.rows[0].probe_id, page.rows[1].probe_id);
    EXPECT_EQ(page.newest[0].count, 3u);
    EXPECT_EQ(page.newest[0].min, -2);
    EXPECT_EQ(page.newest[0].l1, 8);
    EXPECT_EQ(page.newest[1].zero, 1u);
  });
}

TEST(OpLog, ARunWithTheSameRowsIsTheNextReplay) {
  OpLog log;
  for (int run = 1; run <= 3; ++run) {
    log.Add({"a", "", ""}, Cpu({float(run)}), nullptr);
    log.End();
  }
  log.Add({"a", "", ""}, Cpu({1, 2}), nullptr);
  log.End();
  ExpectInSegment([](const std::vector<Page>& pages) {
    ASSERT_THAT(pages, SizeIs(2));
    EXPECT_EQ(pages[0].accepted, 3u);
    EXPECT_EQ(pages[0].newest[0].max, 3);
    EXPECT_EQ(pages[1].accepted, 1u) << "another shape, so another page";
    EXPECT_EQ(pages[0].rows[0].probe_id, pages[1].rows[0].probe_id) << "one name, one probe";
  });
}

TEST(OpLog, ALongLogHasSeveralPagesOfOneReplay) {
  OpLog log;
  const int count = layout::kMaxOpLogRows + 5;
  for (int i = 0; i < count; ++i) log.Add({"x", "", ""}, Cpu({float(i)}), nullptr);
  log.End();
  log.Add({"y", "", ""}, Cpu({1}), nullptr);
  log.End();
  ExpectInSegment([](const std::vector<Page>& pages) {
    ASSERT_THAT(pages, SizeIs(3));
    EXPECT_EQ(pages[0].rows.size(), layout::kMaxOpLogRows);
    ASSERT_EQ(pages[1].rows.size(), 5u);
    EXPECT_EQ(pages[1].serial, pages[0].serial);
    EXPECT_EQ(pages[1].registration.order, pages[0].registration.order + layout::kMaxOpLogRows);
    EXPECT_EQ(pages[2].registration.order, pages[1].registration.order + 5);
    EXPECT_EQ(pages[1].rows[4].invocation, layout::kMaxOpLogRows + 4);
    EXPECT_EQ(pages[1].newest[4].max, layout::kMaxOpLogRows + 4);
  });
}

TEST(OpLog, TheRowsOfARunThatStandsStillLeaveTheProcess) {
  OpLog log;
  log.Add({"fwd/mm", "net.py:3", "1 aten.mm"}, Cpu({1}), nullptr);
  ASSERT_TRUE(test::WaitUntil([] { return CurrentSession().has_value(); }));
  const std::string name = CurrentSession()->name;
  const int code = test::InChild([&] {
    std::vector<Page> pages;
    const bool has_come = test::WaitUntil([&] {
      pages.clear();
      ReadPages(name, &pages);
      return !pages.empty();
    });
    return has_come && pages[0].rows.size() == 1 ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
  log.Add({"fwd/relu", "net.py:4", "2 aten.relu 1"}, Cpu({1}), nullptr);
  log.End();
  ExpectInSegment([](const std::vector<Page>& pages) {
    ASSERT_THAT(pages, SizeIs(2));
    EXPECT_EQ(pages[0].serial, pages[1].serial) << "one run";
  });
}

TEST(OpLog, RunsWhoseRowsLeaveAtAnyTimeHavePagesInCommon) {
  constexpr std::size_t kRows = 200, kMost = 64;
  std::set<std::pair<std::size_t, std::size_t>> pages;
  for (std::size_t first_sent = 1; first_sent < kRows; ++first_sent) {
    std::size_t begin = 0;
    const auto send = [&](std::size_t end, bool is_end) {
      while (begin < end) {
        const std::size_t count = RowsOfNextPage(begin, end - begin, is_end, kMost);
        ASSERT_GE(count, 1u);
        ASSERT_LE(count, std::min(kMost, end - begin));
        pages.emplace(begin, count);
        begin += count;
      }
    };
    send(first_sent, false);
    send(std::min(kRows, first_sent * 2 + 5), false);
    send(kRows, true);
    EXPECT_EQ(begin, kRows);
  }
  EXPECT_LT(pages.size(), 2 * kRows);
}

TEST(OpLog, ARunWhoseRowsLeaveTogetherHasAsFewPagesAsCanBe) {
  EXPECT_EQ(RowsOfNextPage(0, 200, true, 1024), 200u);
  EXPECT_EQ(RowsOfNextPage(0, 1500, true, 1024), 1024u);
  EXPECT_EQ(RowsOfNextPage(1024, 476, true, 1024), 476u);
}

TEST(OpLog, ClosingLetsGoOfItsPages) {
  {
    OpLog log;
    log.Add({"x", "", ""}, Cpu({1}), nullptr);
    log.End();
    log.Add({"x", "", ""}, Cpu({1}), nullptr);
  }
  ExpectInSegment([](const std::vector<Page>& pages) { EXPECT_THAT(pages, SizeIs(0)); });
}

TEST(OpLog, AClosedOneTakesNoRow) {
  OpLog log;
  log.Close();
  EXPECT_THAT(ErrorText(ErrorKind::kClosed,
                        [&] {
                          log.Add({"x", "", ""}, Cpu({1}), nullptr);
                        }),
              HasSubstr("the op log is closed"));
}

TEST(OpLog, AnEmptyRunWritesNothing) {
  OpLog log;
  log.End();
  log.Add({"x", "", ""}, Cpu({}), nullptr);
  log.End();
  ExpectInSegment([](const std::vector<Page>& pages) {
    ASSERT_THAT(pages, SizeIs(1));
    EXPECT_EQ(pages[0].newest[0].count, 0u);
  });
}

TEST(OpLog, ABadNameIsRefused) {
  OpLog log;
  const auto add = [&](const std::string& name) {
    return ErrorText(ErrorKind::kBadArgument, [&] { log.Add({name, "", ""}, Cpu({1}), nullptr); });
  };
  EXPECT_THAT(add("a@b"), HasSubstr("'a@b'"));
  EXPECT_THAT(add(""), HasSubstr("needs a name"));
}

// Every bit pattern of the small dtypes; of the others, random ones and special ones.
std::vector<std::byte> Patterns(std::size_t element_bytes) {
  std::vector<std::byte> bytes;
  const auto add = [&](std::uint64_t bits) {
    for (std::size_t i = 0; i < element_bytes; ++i) bytes.push_back(std::byte(bits >> 8 * i));
  };
  if (element_bytes <= 2) {
    for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 8 * element_bytes; ++bits) add(bits);
    return bytes;
  }
  std::uint64_t random = 1;
  for (int i = 0; i < 20000; ++i) {
    random = random * 6364136223846793005 + 1442695040888963407;
    add(random >> (element_bytes == 4 ? 29 : 0));
  }
  for (const double value :
       {0.0, -0.0, 1e-310, std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    add(element_bytes == 8 ? std::bit_cast<std::uint64_t>(value)
                           : std::bit_cast<std::uint32_t>(static_cast<float>(value)));
  }
  add(element_bytes == 8 ? 0x7ff0000000000001 : 0x7f800001);  // signalling
  add(1);                                                     // subnormal
  return bytes;
}

TEST(HostStats, AreThoseOfTheDaemonForEveryDtype) {
  for (const layout::DtypeInfo& info : layout::kDtypes) {
    SCOPED_TRACE(std::string(info.name));
    std::vector<std::byte> bytes = Patterns(info.bytes);
    if (info.dtype == Dtype::kBool) bytes = {std::byte{0}, std::byte{1}, std::byte{1}};
    const std::uint64_t count = bytes.size() / info.bytes;
    const std::uint64_t shape[] = {count};
    const auto view = numerics::MakeTensorView(info.dtype, shape, bytes);
    ASSERT_TRUE(view.ok());
    const numerics::Stats expected = numerics::ComputeStats(*view);
    const numerics::Stats host =
        numerics::FromDevice(ComputeHostStats(bytes.data(), info.dtype, count));
    EXPECT_EQ(host.count, expected.count);
    EXPECT_EQ(host.nan, expected.nan);
    EXPECT_EQ(host.pos_inf, expected.pos_inf);
    EXPECT_EQ(host.neg_inf, expected.neg_inf);
    EXPECT_EQ(host.zero, expected.zero);
    EXPECT_EQ(host.subnormal, expected.subnormal);
    EXPECT_EQ(host.min, expected.min);
    EXPECT_EQ(host.max, expected.max);
    EXPECT_EQ(host.hash, expected.hash);
    EXPECT_EQ(host.has_nonfinite, expected.has_nonfinite);
    EXPECT_EQ(host.first_nonfinite, expected.first_nonfinite);
    if (!std::isfinite(expected.l2)) continue;  // float64: the sums are too large for one
    // The daemon adds short floats in float32, in an order that depends on the CPU (stats.h).
    const bool is_short = info.is_floating && info.bytes <= 2;
    const double close = is_short ? 2e-6 : 1e-12;
    EXPECT_NEAR(host.l1, expected.l1, close * expected.l1);
    EXPECT_NEAR(host.l2, expected.l2, close * expected.l2);
    EXPECT_NEAR(host.mean, expected.mean,
                is_short ? close * expected.abs_max : close * expected.rms);
    EXPECT_NEAR(host.std, expected.std, is_short ? close * expected.abs_max : 1e-9 * expected.rms);
  }
}

}  // namespace
}  // namespace cgdebug
