// top_view.h: what `top` shows, as lines of text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/analysis/json_number.h"
#include "client/cli/views/live/top_model.h"
#include "client/cli/views/terminal.h"
#include "daemon/core/base/glob.h"

namespace cgdebug::cli {

enum class TopSort { kChange, kAbsMax, kNonfinite, kLost, kName, kOrder };
inline constexpr std::string_view kTopSortNames[] = {"change", "abs_max", "nonfinite",
                                                     "lost",   "name",    "order"};

// What the person at the terminal chose.
struct TopChoice {
  std::string filter;  // as typed
  Selector selector;   // of names, from it
  TopSort sort = TopSort::kChange;
  std::optional<TopId> selected;
  std::vector<TopId> held;    // while one is selected: the order of the rows
  std::size_t first_row = 0;  // of the probes on the screen
};

// The probes that the filter selects, sorted.
std::vector<const TopProbe*> RowsOf(const TopModel& model, const TopChoice& choice);

struct TopFrame {
  std::vector<std::string> lines;
  std::optional<std::size_t> highlighted;
  std::size_t page = 1;  // rows of probes
};

// `notice`: a line about something that went wrong, or empty; `foot`: the last line.
// `size` of the terminal; without one, every session and probe. Moves choice->first_row so that
// what is selected can be seen.
struct TopSize {
  std::size_t rows = 0;
  std::size_t columns = 0;
};
TopFrame DrawTop(const TopModel& model, const std::string& notice, const std::string& foot,
                 const std::optional<TopSize>& size, const Style& style, TopChoice* choice);

// What `status --json` and `probes --json` say, with the rates and changes.
Json ToJson(const TopModel& model, const TopChoice& choice);

// "blk3.attn", with its graph or shape where there are several.
std::string NameText(const TopProbe& probe);

}  // namespace cgdebug::cli
