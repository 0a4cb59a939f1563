#include "client/cli/interrupt.h"

#include <signal.h>

#include <atomic>

namespace cgdebug::cli {
namespace {

std::atomic<client::Client*> stopped_client{nullptr};
volatile sig_atomic_t interrupting_signal = 0;

void OnSignal(int signal) {
  interrupting_signal = signal;
  if (client::Client* client = stopped_client.load()) client->Stop();
}

void Install(void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

InterruptScope::InterruptScope(client::Client* client) {
  interrupting_signal = 0;
  stopped_client = client;
  Install(OnSignal, static_cast<int>(SA_RESETHAND | SA_RESTART));
}

InterruptScope::~InterruptScope() {
  Install(SIG_DFL, 0);
  stopped_client = nullptr;
}

bool InterruptScope::interrupted() const { return interrupting_signal != 0; }

int InterruptExitCode() { return 128 + interrupting_signal; }

}  // namespace cgdebug::cli
