#include "client/cli/run/disk_options.h"

#include "daemon/core/base/bytes.h"
#include "daemon/core/options/parsed_option.h"
#include "daemon/core/recording/recording_writer.h"

namespace cgdebug::cli {

void AddForceOption(CLI::App& app, bool* force) {
  app.add_flag("-f,--force", *force, "remove a recording that is in DIR, first");
}

void AddRecordingOptions(CLI::App& app, std::string* output, bool* force,
                         std::vector<std::string>* probes) {
  app.add_option("-o,--output", *output,
                 "the new directory; default: one in $CGDEBUG_DIR or runs, named by the time")
      ->type_name("DIR");
  AddForceOption(app, force);
  app.add_option("--probes", *probes, "globs: 'blk*.attn', '!blk3.*'; default: all")
      ->type_name("GLOB");
}

void AddDiskOptions(CLI::App& app, live::RecordRequest* request) {
  AddParsed(
      app, "--max-size",
      [](const std::string& text) { return ParseBytes(text, recording::kMinMaxBytes); },
      &request->max_bytes, "SIZE", "stop when the recording has this size: 20G");
  AddParsed(
      app, "--roll-size",
      [](const std::string& text) { return ParseBytes(text, recording::kMinRollBytes); },
      &request->roll_bytes, "SIZE", "begin a new segment file at this size, 1M or more (4G)");
  AddParsed(
      app, "--min-free-disk", [](const std::string& text) { return ParseBytes(text); },
      &request->min_free_bytes, "SIZE", "stop when less than this is free on the disk (64M)");
  app.add_option_function<std::string>(
         "--durability",
         [request](const std::string& name) {
           request->durability = recording::ParseDurability(name);
         },
         "when snapshots survive a power failure: none = when the system has written them, "
         "interval = within a second (default), each = at once, which is slow")
      ->check(CLI::IsMember({"none", "interval", "each"}))
      ->type_name("{none,interval,each}");
}

bool HasDiskOptions(const live::RecordRequest& request) {
  return request.durability || request.roll_bytes != 0 || request.max_bytes != 0 ||
         request.min_free_bytes;
}

}  // namespace cgdebug::cli
