#include "client/cli/views/op_listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "client/analysis/ops/op_details.h"
#include "client/cli/views/terminal.h"
#include "daemon/core/numerics/format.h"

namespace cgdebug::cli {
namespace {

using analysis::OpDetails;
using analysis::OpRow;

// "fwd", "layers", "3", "attn" of "fwd/layers.3.attn/mm_2".
std::vector<std::string_view> PathOf(const OpRow& row) {
  std::vector<std::string_view> path;
  std::string_view rest = analysis::PlaceOf(row);
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find_first_of(path.empty() ? "/" : "/."), rest.size());
    path.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return path;
}

std::string StatsText(const OpRow& row) {
  if (!row.stats) return "lost";
  std::string text = fmt::format("l1 {}", numerics::FormatNumber(row.stats->l1, 4));
  if (row.stats->has_ordered_hash) text += fmt::format("  hash {:08x}", row.stats->ordered_hash);
  if (row.stats->nonfinite() > 0) text += "  " + NonfiniteText(*row.stats);
  return text;
}

class Lines {
 public:
  void Add(std::size_t indent, const std::string& text) {
    if (!text_.empty()) text_ += '\n';
    text_.append(indent * 2, ' ');
    text_ += Printable(text);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

void AddRow(const OpRow& row, const OpListing& listing, std::size_t indent, Lines* lines) {
  const OpDetails details = analysis::ParseOpDetails(row.details);
  if (listing.views)
    for (const std::string& view : details.views) lines->Add(indent + 1, view);
  const std::size_t slash = row.name.rfind('/');
  const std::string name =
      listing.tree && slash != std::string::npos ? row.name.substr(slash + 1) : row.name;
  const std::string call =
      row.op == "input" ? "" : fmt::format(" = {}({})", row.op, details.arguments);
  lines->Add(indent,
             fmt::format("#{} {}{} -> {}  {}", row.number, name, call, row.type, StatsText(row)));
  for (const auto& [column, value] : details.columns) {
    lines->Add(indent + 2, fmt::format("{}: {}", column, value));
  }
  if (!details.region.empty()) lines->Add(indent + 2, "region: " + details.region);
  if (!details.placements.empty()) lines->Add(indent + 2, details.placements);
  if (!listing.stack) return;
  for (const std::string& source : details.sources) lines->Add(indent + 2, "of " + source);
  if (!row.site.empty()) {
    lines->Add(indent + 2, row.site + (details.code.empty() ? "" : ": " + details.code));
  }
  for (const std::string& frame : details.stack) lines->Add(indent + 2, frame);
}

}  // namespace

std::string NonfiniteText(const numerics::Stats& stats) {
  std::string text;
  const auto add = [&](std::uint64_t count, const char* what) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
  };
  add(stats.nan, "NaN");
  add(stats.pos_inf, "+Inf");
  add(stats.neg_inf, "-Inf");
  return text.empty() ? "-" : text;
}

std::string OpListingText(const analysis::OpLog& log, const OpListing& listing,
                          const std::function<bool(const OpRow&)>& is_shown) {
  Lines lines;
  std::vector<std::string_view> open;
  for (const OpRow& row : log.rows) {
    if (!is_shown(row)) continue;
    std::size_t indent = 0;
    if (listing.tree) {
      const std::vector<std::string_view> path = PathOf(row);
      std::size_t same = 0;
      while (same < std::min(open.size(), path.size()) && open[same] == path[same]) ++same;
      for (std::size_t i = same; i < path.size(); ++i) lines.Add(i, std::string(path[i]));
      open = path;
      indent = path.size();
    }
    AddRow(row, listing, indent, &lines);
  }
  return lines.Take();
}

}  // namespace cgdebug::cli
