// filter_line.h: the line in which a filter of `top` is typed.
#pragma once

#include <string>

#include "client/cli/views/live/screen.h"
#include "daemon/core/base/glob.h"

namespace cgdebug::cli {

class FilterLine {
 public:
  // The line has the filter that holds.
  void Begin(const std::string& filter);
  // False: what is typed now is no filter, and error() says why.
  bool Press(const Key& key);
  // Whether that key left the line, by Enter with a filter, or by Escape with the filter as it was.
  bool is_over() const { return is_over_; }

  const std::string& typed() const { return typed_; }
  const Selector& selector() const { return selector_; }  // of the last filter
  const std::string& error() const { return error_; }

 private:
  std::string typed_;
  std::string before_;
  std::string error_;
  Selector selector_;
  bool is_over_ = false;
};

}  // namespace cgdebug::cli
