#include "client/cli/disk_options.h"

namespace cgdebug::cli {

void AddDiskOptions(CLI::App& app, DiskOptions* options) {
  app.add_option("--max-size", options->max_bytes, "stop when the recording has this size: 20G")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber)
      ->type_name("SIZE");
  app.add_option("--roll-size", options->roll_bytes,
                 "a new segment file at this size, 1M or more (4G)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber)
      ->type_name("SIZE");
  app.add_option("--durability", options->durability,
                 "when it survives a power failure: none = when the system wrote it, interval = "
                 "within a second (default), each = with every snapshot, which is slow")
      ->check(CLI::IsMember({"none", "interval", "each"}))
      ->type_name("{none,interval,each}");
}

void Apply(const DiskOptions& options, v1::RecordStartRequest* request) {
  request->set_durability(options.durability);
  request->set_roll_bytes(options.roll_bytes);
  request->set_max_bytes(options.max_bytes);
}

}  // namespace cgdebug::cli
