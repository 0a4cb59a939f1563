#include "daemon/serve/row_values.h"

#include <fmt/format.h>

namespace cgdebug::serve {

std::string HowToGetValues(const pipeline::SlotIdentity& row) {
  const bool is_eager = row.registration.graph_id == 0;
  const std::string how = fmt::format(
      "Its tensor's memory is used again before that. To keep its values from the job's next start "
      "on, type: cgdebug-cli run --watch 'op:*'{} --values '{}' -- COMMAND. In the program: "
      "cgdebug.{}values=\"{}\")",
      is_eager ? " --eager" : "", row.probe,
      is_eager ? "debug_mode(model, eager=True, " : "watch(model, level=\"op\", ", row.probe);
  if (is_eager) return how;
  return how + fmt::format(
                   ". Of a job that runs with --ask or --rewind, type: cgdebug-cli ask {} '{}' "
                   "--values FILE.safetensors",
                   row.session->key, row.probe);
}

}  // namespace cgdebug::serve
