// catalogue_schema.h: the tables and views of a catalogue.
#pragma once

#include <string>

namespace cgdebug::recording {

// A catalogue of another version is not read but rebuilt.
inline constexpr int kCatalogueVersion = 17;

// The columns of statistics are the numbers of numerics::Stats.
const std::string& CatalogueSchema();

}  // namespace cgdebug::recording
