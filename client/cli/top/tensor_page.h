// tensor_page.h: the newest tensor of a probe, as `top` shows it.
#pragma once

#include <string>

#include "client/cli/context.h"
#include "client/cli/top/said.h"
#include "client/cli/views/live/top_model.h"

namespace cgdebug::cli {

struct TensorPage {
  std::string text;  // empty: there is nothing to show
  Said why_not;
};
TensorPage PageOf(Context& context, const TopProbe& one);

}  // namespace cgdebug::cli
