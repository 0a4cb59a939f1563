// Probes a tensor and asks the daemon at the socket in argv[1] what it saw of it.
#include <cgdebug/client.h>
#include <cgdebug/probe.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
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

    cgdebug::client::Client client;
    cgdebug::client::ConnectOptions to;
    to.socket = argv[1];
    const cgdebug::Result<void> connected = client.Connect(to);
    cgdebug::v1::GetRequest request;
    request.set_probe("layer0.out");
    request.set_replay(-1);
    if (connected.ok()) (void)client.Sync({});
    const cgdebug::Result<cgdebug::client::Tensor> got =
        connected.ok() ? client.Get(request) : connected.error();
    if (!got.ok()) {
      const cgdebug::Error error = got.error();
      std::fprintf(stderr, "%s\n", error.message.c_str());
      return 1;
    }
    std::printf("mean %g of %zu bytes\n", got->reply.snapshot().stats().mean(),
                got->payload.size());
  } catch (const cgdebug::ProbeError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
