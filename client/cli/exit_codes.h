// exit_codes.h: what cgdebug-cli exits with; decided once, the same for every command.
#pragma once

#include "client/analysis/answer.h"

namespace cgdebug::cli {

enum ExitCode : int {
  kExitOk = 0,            // done; nothing found by a command that looks for something
  kExitFound = 1,         // done; something found: NaN, a failed comparison, a FAIL of doctor
  kExitTrouble = 2,       // bad arguments, unreadable or incompatible input
  kExitInconclusive = 3,  // nothing found, but something was not looked at
  kExitNoMatch = 4,       // no daemon, session or probe matched; the message says why
  kExitTimeout = 5,
  // 128 + the signal that ended it (interrupt.h): 130 for Ctrl-C, 143 for SIGTERM. A closed pipe
  // ends the process with SIGPIPE, a shell's 141.
};

// Of a command that looks for something.
constexpr ExitCode ExitCodeOf(analysis::Outcome outcome) {
  switch (outcome) {
    case analysis::Outcome::kNothing:
      return kExitOk;
    case analysis::Outcome::kFound:
      return kExitFound;
    case analysis::Outcome::kInconclusive:
      break;
  }
  return kExitInconclusive;
}

}  // namespace cgdebug::cli
