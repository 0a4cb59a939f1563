// merged_source.h: shows several sources as one, or a part of one source.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "client/source/source.h"

namespace cgdebug::source {

// `unread`: files that belong to the source and could not be read, see Description::unread.
// Requires: at least one part.
std::unique_ptr<Source> Merge(std::string path, std::vector<std::unique_ptr<Source>> parts,
                              std::vector<std::string> unread = {});

// The part of `source` that has only the slots that are wanted.
std::unique_ptr<Source> Only(std::unique_ptr<Source> source,
                             const std::function<bool(const Slot&)>& wants);
// The same of the processes with these uuids.
std::unique_ptr<Source> OnlyOf(std::unique_ptr<Source> source, std::set<std::string> uuids);

}  // namespace cgdebug::source
