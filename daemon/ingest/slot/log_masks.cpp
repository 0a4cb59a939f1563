#include "daemon/ingest/slot/log_masks.h"

#include <algorithm>
#include <string_view>

namespace cgdebug::ingest {
namespace {

constexpr std::size_t kRuns = 64;
constexpr std::string_view kValue = ".value";

}  // namespace

bool LogMasks::OneRun::IsRead(std::uint32_t number) const {
  return std::ranges::any_of(
      read, [number](const auto& page) { return page.first <= number && number <= page.second; });
}

bool LogMasks::OneRun::IsWaitedFor(std::uint32_t number) const {
  return std::ranges::find(waiting, number, &Waiting::number) != waiting.end();
}

LogMasks::Run LogMasks::RunOf(const pipeline::Snapshot& snapshot, std::uint32_t number) {
  const layout::SlotFacts& registration = snapshot.slot->registration;
  if (pipeline::IsOpLogRow(*snapshot.slot) || number == 0) {
    return {true, registration.graph_id, snapshot.replay, snapshot.iteration};
  }
  if (registration.graph_id != 0) {
    return {false, registration.graph_id, snapshot.serial, snapshot.iteration};
  }
  return {false, registration.order - number, snapshot.replay, snapshot.iteration};
}

LogMasks::OneRun& LogMasks::At(const Run& run) {
  // The newest come most often.
  const auto found =
      std::find_if(runs_.rbegin(), runs_.rend(), [&](const OneRun& one) { return one.run == run; });
  if (found != runs_.rend()) return *found;
  if (runs_.size() == kRuns) runs_.pop_front();
  return runs_.emplace_back(OneRun{.run = run});
}

LogMasks::Answer LogMasks::IsMask(const pipeline::Snapshot& snapshot, const ops::NonfiniteRow& row,
                                  std::weak_ptr<Later> later) {
  OneRun& run = At(RunOf(snapshot, row.number));
  const std::string& name = snapshot.slot->probe;
  if (pipeline::IsOpLogRow(*snapshot.slot) && row.is_only_neg_inf) {
    Waiting one{.number = row.number,
                .name = name,
                .op = std::string(row.op),
                .inputs = *row.inputs,
                .share = row.share,
                .later = std::move(later)};
    if (!CanTell(run, one)) {
      run.waiting.push_back(std::move(one));
      return Answer::kNotYet;
    }
  }
  const bool is_mask = run.masks.IsMask(row);
  run.told[name] = is_mask;
  return is_mask ? Answer::kYes : Answer::kNo;
}

LogMasks::Answer LogMasks::IsValueOfMask(const pipeline::Snapshot& snapshot,
                                         std::weak_ptr<Later> later) {
  const std::string& name = snapshot.slot->probe;
  if (!name.ends_with(kValue)) return Answer::kNo;
  const std::string row = name.substr(0, name.size() - kValue.size());
  if (!numbers_.contains(row)) return Answer::kNo;
  OneRun& run = At(RunOf(snapshot, 0));
  const auto told = run.told.find(row);
  if (told != run.told.end()) return told->second ? Answer::kYes : Answer::kNo;
  Waiting one{.name = row, .later = std::move(later)};
  if (CanTell(run, one)) return Answer::kNo;
  run.waiting.push_back(std::move(one));
  return Answer::kNotYet;
}

// Whether all that decides has been read.
bool LogMasks::CanTell(const OneRun& run, const Waiting& one) const {
  if (one.number == 0) {
    if (run.told.contains(one.name)) return true;
    const std::set<std::uint32_t>& numbers = numbers_.at(one.name);
    return std::ranges::any_of(numbers, [&](std::uint32_t number) {
      return run.IsRead(number) && !run.IsWaitedFor(number);
    });
  }
  return std::ranges::all_of(one.inputs, [&](std::uint32_t number) {
    return number >= one.number || (run.IsRead(number) && !run.IsWaitedFor(number));
  });
}

void LogMasks::BeginPage(const pipeline::Snapshot& row, std::uint32_t first, std::uint32_t last) {
  At(RunOf(row, first)).read.emplace_back(first, last);
}

void LogMasks::EndPage(const pipeline::Snapshot& row) {
  OneRun& run = At(RunOf(row, 0));
  // A row may wait for one that waits, so those with lower numbers come first, and values last.
  std::ranges::stable_sort(run.waiting, {}, [](const Waiting& one) { return one.number - 1; });
  for (std::size_t i = 0; i < run.waiting.size();) {
    if (!CanTell(run, run.waiting[i])) {
      ++i;
      continue;
    }
    const Waiting one = std::move(run.waiting[i]);
    run.waiting.erase(run.waiting.begin() + static_cast<std::ptrdiff_t>(i));
    bool is_mask = false;
    if (one.number == 0) {
      const auto told = run.told.find(one.name);
      is_mask = told != run.told.end() && told->second;
    } else {
      is_mask = run.masks.IsMask({one.number, one.op, &one.inputs, true, one.share});
      run.told[one.name] = is_mask;
    }
    if (const std::shared_ptr<Later> later = one.later.lock()) (*later)(is_mask);
  }
}

}  // namespace cgdebug::ingest
