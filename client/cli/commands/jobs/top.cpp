#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "client/cli/command.h"
#include "client/cli/interrupt.h"
#include "client/cli/top/filter_line.h"
#include "client/cli/top/tensor_page.h"
#include "client/cli/top/top_control.h"
#include "client/cli/top/top_watch.h"
#include "client/cli/views/live/screen.h"
#include "client/cli/views/live/top_view.h"
#include "daemon/core/base/realtime.h"
#include "daemon/core/numerics/ascii.h"
#include "daemon/core/options/number.h"

namespace cgdebug::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kDaemonTimeout{3000};  // the longest that a key waits
constexpr std::ptrdiff_t kFar = PTRDIFF_MAX / 2;           // beyond the first and the last row

struct TopOptions {
  std::vector<std::string> probes;
  std::string sort = "change";
  double interval_s = 1;
};

constexpr const char* kHelpText = R"(WHAT THE SCREEN SHOWS
REPLAYS/S   of all CUDA graphs of the rank together; of eager code, of the
            probe that ran most often
READ/S      bytes of snapshots that the daemon read; not of those that it lost
LOST        snapshots that nobody could read in time; why: cgdebug-cli status
CHANGE      of the root mean square of the finite elements since the look
            before; "=" the same, "-" no new snapshot
NAN+INF     elements of the newest snapshot; "earlier": of one before it only
MODE        what the probe was set to; "-": it is as the job registered it

Rows are sorted by change: what changed most lately is on top. They stay in
their order while one is selected. A wider terminal shows more columns.

KEYS
arrows, PgUp, PgDn, Home, End   select a probe; Esc lets it go
Enter   show its newest tensor: statistics, histogram, values
m       set it: off, statistics, values, or as registered; for 5 minutes
M       the same for every probe that the filter leaves
/       only probes with this in their names; also globs, 're:...', '!...'
s       sort by change, abs max, NaN and Inf, losses, name, or graph order
Space   hold the screen; again: go on
q       quit
)";

class Top {
 public:
  Top(Context& context, const TopOptions& options, TopModel& model, TopChoice& choice)
      : context_(context),
        options_(options),
        model_(model),
        choice_(choice),
        watch_(&context, &model, kDaemonTimeout) {}

  // Returns the exit code.
  int Run(Screen& screen, const InterruptScope& interrupt) {
    const auto interval = std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(options_.interval_s));
    Clock::time_point next = Clock::now() + interval;
    while (!is_over_) {
      Draw(screen);
      // A screen that is held still says how long ago a job ended, and nothing else.
      const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now()) +
                        std::chrono::milliseconds(1);
      if (const std::optional<Key> key = screen.Wait(wait)) Press(*key);
      if (interrupt.interrupted()) return InterruptExitCode();
      if (Clock::now() < next) continue;
      if (!is_held_) {
        if (std::optional<Said> news = watch_.Look()) Say(*std::move(news));
      }
      if (interrupt.interrupted()) return InterruptExitCode();
      next = std::max(next + interval, Clock::now());
    }
    return kExitOk;
  }

 private:
  enum class Page { kList, kShow, kHelp };
  enum class Typing { kNothing, kFilter, kMode, kModeOfAll };

  void Say(Said said) {
    said_ = {Printable(said.text), said.is_bad};
    said_at_ = Clock::now();
  }

  std::string NoticeText() const {
    const Style& style = context_.out;
    if (watch_.is_gone()) return style.Red(watch_.GoneText());
    if (is_held_) {
      return style.Yellow(
          fmt::format("held since {}; Space goes on", FormatTimeOfDay(held_ns_).substr(0, 8)));
    }
    return "";
  }

  std::string FootText(std::size_t columns) const {
    const Style& style = context_.out;
    const std::string target = choice_.selected ? NameOfSelected() : "";
    const auto modes = [&](const std::string& what) {
      return style.Bold(what) + ": o off  s statistics  f full  r as registered  Esc";
    };
    switch (typing_) {
      case Typing::kFilter:
        return style.Bold("/") + Printable(filter_.typed()) + "_" +
               (filter_.error().empty() ? "" : "  " + style.Red(Printable(filter_.error())));
      case Typing::kMode:
        return modes(target);
      case Typing::kModeOfAll: {
        const std::size_t count = RowsOf(model_, choice_).size();
        return modes(count == 1 ? "1 probe" : fmt::format("all {} probes", count));
      }
      case Typing::kNothing:
        break;
    }
    if (page_ != Page::kList) return style.Dim("arrows scroll  Esc back  q quit");
    if (!said_.text.empty() && Clock::now() - said_at_ < std::chrono::seconds(10)) {
      return said_.is_bad ? style.Red(said_.text) : style.Yellow(said_.text);
    }
    const std::string sort =
        fmt::format("s sort: {}", kTopSortNames[static_cast<std::size_t>(choice_.sort)]);
    for (const std::string& text :
         {fmt::format(
              "q quit  ? help  / filter  arrows select  Enter show  m mode  M all modes  {} "
              " Space hold",
              sort),
          fmt::format("q quit  ? help  / filter  Enter show  m mode  {}", sort),
          std::string("q quit  ? help  / filter  m mode")}) {
      if (DisplayWidth(text) <= columns) return style.Dim(text);
    }
    return style.Dim("q quit  ? help");
  }

  void Draw(Screen& screen) {
    const TopSize size{screen.rows(), screen.columns()};
    std::vector<std::string> lines;
    std::optional<std::size_t> highlighted;
    if (page_ == Page::kList) {
      TopFrame frame =
          DrawTop(model_, NoticeText(), FootText(size.columns), size, context_.out, &choice_);
      rows_of_page_ = frame.page;
      highlighted = frame.highlighted;
      lines = std::move(frame.lines);
    } else {
      lines = TextPage(size);
    }
    const auto to_terminal = [&](const std::string& line) {
      return LocaleIsAscii() ? numerics::ToAscii(line) : line;
    };
    for (std::string& line : lines) {
      line = to_terminal(CutToColumns(to_terminal(line), size.columns));
    }
    screen.Draw(lines, highlighted);
  }

  // The help, or a tensor.
  std::vector<std::string> TextPage(const TopSize& size) {
    const std::string wrapped = WrapLines(page_ == Page::kHelp ? kHelpText : shown_, size.columns);
    std::vector<std::string> all;
    for (std::size_t begin = 0; begin < wrapped.size();) {
      const std::size_t end = std::min(wrapped.find('\n', begin), wrapped.size());
      all.push_back(wrapped.substr(begin, end - begin));
      begin = end + 1;
    }
    rows_of_page_ = size.rows > 1 ? size.rows - 1 : 1;
    scroll_ = std::min(scroll_, all.size() > rows_of_page_ ? all.size() - rows_of_page_ : 0);
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(scroll_));
    all.resize(rows_of_page_);
    all.push_back(FootText(size.columns));
    return all;
  }

  void Press(const Key& key) {
    using enum Key::Kind;
    said_.text.clear();
    if (key.kind == kClosed) {
      is_over_ = true;
    } else if (typing_ == Typing::kFilter) {
      TypeFilter(key);
    } else if (typing_ != Typing::kNothing) {
      TypeMode(key);
    } else if (key.text == "q") {
      is_over_ = true;
    } else if (page_ != Page::kList) {
      Scroll(key);
    } else {
      PressInList(key);
    }
  }

  void Scroll(const Key& key) {
    using enum Key::Kind;
    const std::size_t page = std::max<std::size_t>(rows_of_page_, 2) - 1;
    if (key.kind == kUp || key.text == "k") scroll_ -= std::min<std::size_t>(scroll_, 1);
    if (key.kind == kDown || key.text == "j") ++scroll_;
    if (key.kind == kPageUp) scroll_ -= std::min(scroll_, page);
    if (key.kind == kPageDown || key.text == " ") scroll_ += page;
    if (key.kind == kHome) scroll_ = 0;
    if (key.kind == kEnd) scroll_ = kFar;
    if (key.kind == kEscape || key.kind == kEnter) page_ = Page::kList;
  }

  void PressInList(const Key& key) {
    using enum Key::Kind;
    const auto page = static_cast<std::ptrdiff_t>(rows_of_page_);
    if (key.kind == kUp || key.text == "k") Select(-1);
    if (key.kind == kDown || key.text == "j") Select(1);
    if (key.kind == kPageUp) Select(-page);
    if (key.kind == kPageDown) Select(page);
    if (key.kind == kHome || key.text == "g") Select(-kFar);
    if (key.kind == kEnd || key.text == "G") Select(kFar);
    if (key.kind == kEscape) LetGo();
    if (key.kind == kEnter) Show();
    if (key.text == "?" || key.text == "h") {
      page_ = Page::kHelp;
      scroll_ = 0;
    }
    if (key.text == "/") {
      typing_ = Typing::kFilter;
      filter_.Begin(choice_.filter);
    }
    if (key.text == "m" && HasSelected()) typing_ = Typing::kMode;
    if (key.text == "M" && !RowsOf(model_, choice_).empty()) typing_ = Typing::kModeOfAll;
    if (key.text == "s") {
      const auto next = static_cast<std::size_t>(choice_.sort) + 1;
      choice_.sort = static_cast<TopSort>(next % std::size(kTopSortNames));
      LetGo();
    }
    if (key.text == " ") {
      is_held_ = !is_held_;
      held_ns_ = RealtimeNs();
    }
  }

  void LetGo() {
    choice_.selected.reset();
    choice_.held.clear();
    choice_.first_row = 0;
  }

  const TopProbe* Selected() const {
    for (const TopProbe* one : RowsOf(model_, choice_)) {
      if (choice_.selected == one->id()) return one;
    }
    return nullptr;
  }
  std::string NameOfSelected() const {
    const TopProbe* const one = Selected();
    return one == nullptr ? "" : NameText(*one);
  }
  bool HasSelected() {
    if (Selected() != nullptr) return true;
    Say({"select a probe with the arrow keys first"});
    return false;
  }

  // Moves by that many rows; the first time, to the row on top.
  void Select(std::ptrdiff_t by) {
    const std::vector<const TopProbe*> rows = RowsOf(model_, choice_);
    if (rows.empty()) return;
    std::ptrdiff_t at = -1;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (choice_.selected == rows[i]->id()) at = static_cast<std::ptrdiff_t>(i);
    }
    if (at < 0 && by != kFar) by = 1;
    at = std::clamp<std::ptrdiff_t>(at + by, 0, static_cast<std::ptrdiff_t>(rows.size()) - 1);
    choice_.selected = rows[static_cast<std::size_t>(at)]->id();
    if (!choice_.held.empty()) return;
    for (const TopProbe* one : rows) choice_.held.push_back(one->id());
  }

  void TypeFilter(const Key& key) {
    if (filter_.Press(key) && filter_.typed() != choice_.filter) {
      choice_.filter = filter_.typed();
      choice_.selector = filter_.selector();
      LetGo();
    }
    if (filter_.is_over()) typing_ = Typing::kNothing;
  }

  void TypeMode(const Key& key) {
    const Typing typing = std::exchange(typing_, Typing::kNothing);
    layout::ControlMode mode;
    if (key.text == "o") {
      mode = layout::ControlMode::kOff;
    } else if (key.text == "s") {
      mode = layout::ControlMode::kStats;
    } else if (key.text == "f") {
      mode = layout::ControlMode::kFull;
    } else if (key.text == "r") {
      mode = layout::ControlMode::kAsRegistered;
    } else {
      return Say({"nothing was set"});
    }
    Say(typing == Typing::kMode ? SetOne(context_.client(), Selected(), mode)
                                : SetAll(context_.client(), model_, RowsOf(model_, choice_), mode));
  }

  void Show() {
    if (!HasSelected()) return;
    TensorPage page = PageOf(context_, *Selected());
    if (page.text.empty()) return Say(std::move(page.why_not));
    shown_ = std::move(page.text);
    page_ = Page::kShow;
    scroll_ = 0;
  }

  Context& context_;
  const TopOptions& options_;
  TopModel& model_;
  TopChoice& choice_;
  Page page_ = Page::kList;
  Typing typing_ = Typing::kNothing;
  FilterLine filter_;
  std::string shown_;  // the page of a tensor
  std::size_t scroll_ = 0;
  std::size_t rows_of_page_ = 1;
  Said said_;
  Clock::time_point said_at_;
  TopWatch watch_;
  bool is_held_ = false;
  std::int64_t held_ns_ = 0;
  bool is_over_ = false;
};

// One frame, over one interval from `begin` on, when the first look began.
int ShowOnce(Context& context, const TopOptions& options, Clock::time_point begin, TopModel* model,
             TopChoice* choice) {
  const InterruptScope interrupt(&context.client());
  std::this_thread::sleep_until(begin + std::chrono::duration<double>(options.interval_s));
  if (interrupt.interrupted()) return InterruptExitCode();
  if (const Result<void> looked = LookOnce(context, model); !looked.ok()) {
    return context.Fail(looked.error());
  }
  if (context.options.json) {
    Context::PrintJson(ToJson(*model, *choice));
  } else {
    TopFrame frame = DrawTop(*model, "", "", std::nullopt, context.out, choice);
    // A table that is wrapped is none.
    if (const std::size_t columns = TerminalColumns(STDOUT_FILENO); columns > 0) {
      for (std::string& line : frame.lines) line = CutToColumns(line, columns);
    }
    Context::Print(fmt::format("{}\n", fmt::join(frame.lines, "\n")));
  }
  return kExitOk;
}

int RunTop(Context& context, const TopOptions& options) {
  TopChoice choice;
  choice.filter = fmt::format("{}", fmt::join(options.probes, ","));
  const Result<Selector> selector = Selector::Parse(options.probes);
  if (!selector.ok()) return context.Fail(kExitTrouble, selector.error().message);
  choice.selector = *selector;
  const auto* const sort = std::ranges::find(kTopSortNames, options.sort);
  choice.sort = static_cast<TopSort>(sort - std::begin(kTopSortNames));
  client::ConnectOptions connect = context.MakeConnectOptions();
  connect.timeout = kDaemonTimeout;
  if (const int failed = context.ConnectWith(connect)) return failed;
  TopModel model;
  const Clock::time_point begin = Clock::now();
  if (const Result<void> looked = LookOnce(context, &model); !looked.ok()) {
    return context.Fail(looked.error());
  }
  const bool is_for_people = !context.options.json;
  const char* const term = std::getenv("TERM");
  const bool is_screen = is_for_people && ::isatty(STDIN_FILENO) == 1 &&
                         ::isatty(STDOUT_FILENO) == 1 && term != nullptr && *term != '\0' &&
                         std::string_view(term) != "dumb";
  if (!is_screen) return ShowOnce(context, options, begin, &model, &choice);
  int code = kExitOk;
  std::string why_once;
  {
    const InterruptScope interrupt(&context.client());
    Result<std::unique_ptr<Screen>> screen = Screen::Open(context.out.enabled());
    if (!screen.ok()) {
      why_once = screen.error().message;
    } else {
      code = Top(context, options, model, choice).Run(**screen, interrupt);
      return code;
    }
  }
  code = ShowOnce(context, options, begin, &model, &choice);
  context.Note("cgdebug: one frame, because " + why_once);  // last, where it is in sight
  return code;
}

}  // namespace

RunFunction AddTop(CLI::App& app) {
  auto options = std::make_shared<TopOptions>();
  app.add_option("PROBE", options->probes,
                 "only these: globs; 're:...' a regular expression, '!...' excludes");
  app.add_option("--sort", options->sort,
                 "what is on top; change: what changed most since the look before")
      ->check(CLI::IsMember({"change", "abs_max", "nonfinite", "lost", "name", "order"}))
      ->type_name("{change,abs_max,nonfinite,lost,name,order}");
  app.add_option("--interval", options->interval_s, "seconds between two looks, 1 at least")
      ->check(Number(1, 3600))
      ->type_name("SECONDS");
  return [options](Context& context) { return RunTop(context, *options); };
}

}  // namespace cgdebug::cli
