// catalogue_graphs.h: the names of graphs in a catalogue.
#pragma once

struct sqlite3;

namespace cgdebug::recording {

// Fills in probe.graph for all sessions, because an added slot may change a graph's name.
bool NameGraphs(sqlite3* database);

}  // namespace cgdebug::recording
