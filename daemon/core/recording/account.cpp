#include "daemon/core/recording/account.h"

#include <fmt/format.h>

namespace cgdebug::recording {

std::string ToText(const Account& account) {
  std::string text = fmt::format("{} produced, {} kept", account.produced, account.kept);
  if (account.not_wanted > 0) text += fmt::format(", {} not wanted", account.not_wanted);
  for (const auto& [cause, count] : account.lost) {
    text += fmt::format(", {} missing ({})", count, cause);
  }
  if (account.unread > 0) text += fmt::format(", {} not read yet", account.unread);
  if (account.without_values > 0) {
    text += fmt::format(", {} with their statistics alone", account.without_values);
  }
  return text;
}

}  // namespace cgdebug::recording
