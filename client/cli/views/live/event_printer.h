// event_printer.h: the events of a tail, one line each, and what they add up to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <string>

#include "client/cli/views/terminal.h"
#include "client/live/events.h"

namespace cgdebug::cli {

struct EventPrinterOptions {
  bool is_json = false;  // else for people
  Style style;
  bool always_prefix = false;
  bool timestamps = false;
  bool print_lines = true;  // what TensorPrint wrote
};

struct EventTotals {
  std::uint64_t snapshots = 0;
  std::uint64_t lost = 0;
  std::uint64_t nonfinite = 0;  // snapshots with NaN or Inf
  std::uint64_t compare_failures = 0;
  std::set<std::string> probes;
  std::map<std::string, std::uint64_t> rows;  // of op logs, by page
};

// Thread: one at a time.
class EventPrinter {
 public:
  EventPrinter(EventPrinterOptions options, std::FILE* out) : options_(options), out_(out) {}

  void Print(const live::Event& event);
  // `count` findings that have no line; the last of them is `last`.
  void PrintBehind(const source::Tensor& last, std::size_t count);

  // Announces a session whose events may come, so that even the first line has its prefix.
  void See(const std::string& session, int rank, const std::string& label);

  const EventTotals& totals() const { return totals_; }
  // "12 snapshots of 3 probes, 0 lost, 1 with NaN or Inf".
  std::string Summary() const;

 private:
  struct Source {
    int rank;
    std::string label;
  };
  void Count(const live::Event& event);
  std::string Human(const live::Event& event);
  std::string HumanSnapshot(const source::Tensor& tensor);
  std::string HumanPage(const live::Event& page);
  std::string HumanPrint(const live::Event& print);
  std::string HumanSession(const live::Event& change);
  std::string Where(const source::Tensor& tensor);
  std::string Prefix(const std::string& session, int rank) const;

  EventPrinterOptions options_;
  std::FILE* out_;
  EventTotals totals_;
  std::map<std::string, Source> sources_;  // by session key
  bool ranks_are_enough_ = true;           // to tell the sessions apart
  std::size_t name_width_ = 0;
  std::size_t type_width_ = 0;
  std::string last_snapshot_;  // which one was printed last
};

// What --only asks for: "nan", "changed", "mismatch"; everything when it is empty.
live::Only ParseOnly(const std::string& only);

}  // namespace cgdebug::cli
