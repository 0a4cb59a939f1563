// said.h: what `top` says in its last line for a while.
#pragma once

#include <string>

namespace cgdebug::cli {

struct Said {
  std::string text;
  bool is_bad = false;
};

}  // namespace cgdebug::cli
