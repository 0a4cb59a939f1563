// catalogue_graphs.h: the names of graphs in a catalogue.
#pragma once

struct sqlite3;

namespace cgdebug::recording {

// Fills in probe.graph, of all sessions: a slot that was added may give a graph another name.
bool NameGraphs(sqlite3* database);

}  // namespace cgdebug::recording
