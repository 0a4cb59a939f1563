// session.h: this process as a daemon sees it.
#pragma once

#include <chrono>

#include "cgdebug/probe.h"

namespace cgdebug {

// Whether a daemon reads the segment.
bool DaemonAlive();
// Makes the segment and gives a daemon that was just started a few milliseconds to find it. What is
// written earlier may be overwritten unread. Fails: throws ProbeError.
void AwaitDaemon(std::chrono::nanoseconds timeout);

// Waits until the daemon has consumed every entry of `probe` that someone waits for; nullptr: of
// all probes, closed ones too. False after `timeout` or without a daemon.
bool WaitConsumed(const ProbeState* probe, std::chrono::nanoseconds timeout);

}  // namespace cgdebug
