// between_calls.h: what a program makes after one eager call and before the next, such as a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "client/source/source.h"

namespace cgdebug::analysis {

// The rows at the end of a call that lie outside of all modules and read nothing of what came
// before them in it. They have the number of that call, and most likely are for the next one.
struct BetweenCalls {
  std::uint32_t first_row = 0;  // the number of the first of them; 0: none that is known
  std::uint64_t next_call = 0;
};

// `slot`: of any row of the call. None where it cannot be known: rows of the call may be missing,
// or the next one had begun before they came, or has not begun.
BetweenCalls BetweenCallsOf(source::Source& source, std::size_t slot, std::uint64_t call);
// The next call if the row was made between the two, else 0.
std::uint64_t NextCallOf(source::Source& source, std::size_t slot, std::uint64_t replay);

// "call 3", "between call 3 and 4", "replay 7". `next_call`: of NextCallOf().
std::string WhenText(const source::Slot& slot, std::uint64_t replay, std::uint64_t next_call);
// "in call 3", "between call 3 and 4", "@7": what follows a name.
std::string WhenMark(const source::Slot& slot, std::uint64_t replay, std::uint64_t next_call);

}  // namespace cgdebug::analysis
