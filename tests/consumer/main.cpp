// Probes a tensor. With WITH_CLIENT, which includes both public headers, it also asks the daemon at
// the socket in argv[1] what it saw of the tensor.
#include <cgdebug/probe.h>

#include <cstdio>

#ifdef WITH_CLIENT
#include <cgdebug/client.h>
#include <cgdebug/messages.h>

int Ask(const char* socket) {
  cgdebug::client::Client client;
  cgdebug::client::ConnectOptions to;
  to.socket = socket;
  const cgdebug::Result<void> connected = client.Connect(to);
  cgdebug::v1::GetRequest request;
  request.set_probe("layer0.out");
  request.set_replay(-1);
  if (connected.ok()) (void)client.Ask<cgdebug::v1::SyncReply>(cgdebug::v1::SyncRequest());
  const cgdebug::Result<cgdebug::client::Tensor> got =
      connected.ok() ? client.Get(request) : connected.error();
  if (!got.ok()) {
    const cgdebug::Error error = got.error();
    std::fprintf(stderr, "%s\n", error.message.c_str());
    return 1;
  }
  std::printf("mean %g of %zu bytes\n", got->reply.snapshot().stats().mean(), got->payload.size());
  return 0;
}
#endif

int main(int argc, char** argv) {
  try {
    cgdebug::ProbeOptions options;
    options.mode = cgdebug::ProbeMode::kAlways;
    options.record = cgdebug::RecordAction{};
    cgdebug::Probe probe("layer0.out", options);
    float values[4] = {1, 2, 3, 4};
    cgdebug::TensorRef tensor;
    tensor.data = values;
    tensor.dtype = cgdebug::Dtype::kFloat32;
    tensor.shape = {2, 2};
    tensor.device_type = cgdebug::DeviceType::kCpu;
    probe.Observe(tensor);
    std::printf("%zu record, %s\n", probe.Records().size(), cgdebug::Version().c_str());
#ifdef WITH_CLIENT
    return argc == 2 ? Ask(argv[1]) : 2;
#else
    (void)argv;
    return argc == 1 ? 0 : 2;
#endif
  } catch (const cgdebug::ProbeError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
