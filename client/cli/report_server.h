// report_server.h: a report for a browser on another machine, over an SSH tunnel; or for one here.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "daemon/core/base/result.h"

namespace cgdebug::cli {

// Serves `html` on 127.0.0.1 until SIGINT or SIGTERM, whose number it returns. Only who knows the
// address, which has a random part, gets it: other users of the machine reach the port as well.
// `port` 0: any that is free. `ready` is called once with the port and the path of the page.
// Thread: one call at a time.
// Fails:  the port is in use.
Result<int> ServePage(
    const std::string& html, std::uint16_t port,
    const std::function<void(std::uint16_t port, const std::string& path)>& ready);

// Opens the file in a browser: with BROWSER or xdg-open.
// Fails: there is neither, no screen, or the program failed; the message says what to type.
Result<void> OpenInBrowser(const std::string& path);

}  // namespace cgdebug::cli
