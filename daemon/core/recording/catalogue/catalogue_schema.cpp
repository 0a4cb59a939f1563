#include "daemon/core/recording/catalogue/catalogue_schema.h"

#include <fmt/format.h>

#include <string_view>
#include <type_traits>

#include "daemon/core/numerics/stats.h"

namespace cgdebug::recording {
namespace {

using numerics::Stats;

constexpr std::string_view kSchema = R"sql(
create table progress (  -- up to where each segment is taken in
  recording text, segment integer, next_offset integer, number integer,
  last_offset integer, last_crc32c integer);  -- of the last record taken in
create table run (
  id integer primary key, run_id text, restart_count integer, command text, world_size integer,
  unique (run_id, restart_count, command));
create table session (
  id integer primary key, run integer references run, uuid text, label text, rank integer,
  pid integer, hostname text, version text, created_ns integer);
create table probe (  -- one call of a probe in one graph
  id integer primary key, session integer references session, name text, site text, device text,
  dtype text, shape text, payload_bytes integer, graph_id integer, invocation integer,
  graph_order integer, every integer,
  shard text,  -- which part of a distributed tensor it is, else empty
  graph text,  -- what its graph is called; null: eager
  graph_label text,  -- what the user called it; null: nothing
  op text,  -- of a row of an op log: its number, the op and the rows it read; null: no such row
  in_body integer,  -- it ran any number of times in a replay: in the body of a conditional node or, if
                    -- graph_id is 0, in an eager call, whose number is the replay
  part text,  -- 'rows:0:8 of [8192,4096]': the elements that it has, else empty; shape is theirs
  details text,  -- of a row of an op log: what its op was given, a JSON object; null: nothing known
  thread integer);  -- that began its eager calls, a number in the process, 1: the main one; else null
create table snapshot (
  number integer primary key, probe integer references probe, replay integer,
  iteration integer,  -- of a probe in_body in that replay, from 0; else 0
  ordinal integer,
  step integer,
  serial integer,  -- when the replay began, ns: (serial, graph_order) sorts the snapshots of a run
  timestamp_ns integer, segment integer, offset integer, length integer,
  hash text,  -- of the bytes, XXH3-64; null where they are not known
  unchanged integer, {0},
  first_nonfinite integer,  -- flat index
  xor_hash text,  -- of the values, torch.hash_tensor; null where it was not computed
  ordered_hash text);  -- of the values and their places; null likewise, and in old recordings
create table comparison (  -- with the expected tensor of the probe; 0 mismatched: it passed, and
                           -- max_abs and max_rel, which are of elements that do not match, are null
  number integer primary key references snapshot, mismatched integer, max_abs real, max_rel real);
create table loss (
  number integer primary key, probe integer references probe, cause text, count integer,
  first_ordinal integer, last_ordinal integer, after_replay integer, before_replay integer,
  timestamp_ns integer);
create table mark (
  number integer primary key, kind integer, session integer references session, probe integer,
  replay integer, step integer, timestamp_ns integer, text text);
create index snapshot_by_replay on snapshot (probe, replay);
create index snapshot_nonfinite on snapshot (replay) where nan + pos_inf + neg_inf > 0;

create view v_snapshots as
  select session.rank, snapshot.replay, snapshot.iteration, probe.graph_order,
         probe.name as probe, probe.dtype,
         probe.shape, probe.part, snapshot.step,
         case when probe.in_body and probe.graph_id = 0 then snapshot.replay end as call, probe.thread, {1},
         snapshot.first_nonfinite, snapshot.unchanged,
         snapshot.hash, snapshot.xor_hash, snapshot.ordered_hash, snapshot.timestamp_ns, snapshot.serial,
         probe.graph, probe.graph_id, probe.invocation, probe.id as probe_id, probe.site,
         probe.device, session.label as session, snapshot.segment, snapshot.offset, snapshot.length
  from snapshot join probe on probe.id = snapshot.probe join session on session.id = probe.session;
create view v_comparisons as
  select session.rank, snapshot.replay, snapshot.iteration, probe.graph_order,
         probe.name as probe, snapshot.step,
         comparison.mismatched, snapshot.count, comparison.max_abs, comparison.max_rel,
         session.label as session
  from comparison join snapshot on snapshot.number = comparison.number
  join probe on probe.id = snapshot.probe join session on session.id = probe.session;
create view v_gaps as
  select session.rank, probe.name as probe, loss.after_replay, loss.before_replay, loss.count,
         loss.cause, session.label as session
  from loss join probe on probe.id = loss.probe join session on session.id = probe.session;
create view v_ops as  -- the rows of op logs, with what their ops were given: one for each place
  select rank, number, name, phase, rtrim(place, '/') as module,
         substr(rest, 1, instr(rest || ' ', ' ') - 1) as op,
         json_extract(details, '$.args') as args, dtype, shape, site,
         json_extract(details, '$.code') as code, json_extract(details, '$.region') as region,
         json_extract(details, '$.placements') as placements,
         json_extract(details, '$.stack') as stack, json_extract(details, '$.views') as views,
         json_extract(details, '$.from') as fused_of,
         json_extract(details, '$.columns') as columns,  -- of hooks: json_extract(columns, '$.kept')
         graph, graph_id, session, probe_id, thread
  from (select session.rank, cast(probe.op as integer) as number, probe.name,
               substr(probe.name, 1, instr(probe.name, '/') - 1) as phase,
               -- up to the last '/'
               substr(rtrim(probe.name, replace(probe.name, '/', '')),
                      instr(probe.name, '/') + 1) as place,
               substr(probe.op, instr(probe.op, ' ') + 1) as rest,
               case when json_valid(probe.details) then probe.details end as details,
               probe.dtype, probe.shape, probe.site, probe.graph, probe.graph_id,
               session.label as session, probe.id as probe_id, probe.thread
        from probe join session on session.id = probe.session where probe.op glob '[0-9]*');
create view v_first_nonfinite as  -- of each probe, in the order in which they came
  -- Each graph counts its own replays: only `serial` sorts them. What one rank sends to another in a
  -- call is there, too, before the clock says so: between calls of ranks the place decides.
  select first.replay, iteration, first.graph_order, first.probe, first.shape, first.graph, rank, nan, inf, step,
         serial, first.session
  from (select *, min(replay * 4294967296 + iteration) from v_snapshots where nan + inf > 0
        group by probe_id) as first
  join probe on probe.id = first.probe_id
  join (select min(in_body and graph_id = 0) and count(distinct session.rank) > 1 as by_calls
        from probe join session on session.id = probe.session where probe.op not glob 'gap *') as runs
  order by case when by_calls then 0 else serial end, first.replay,
           case when by_calls and probe.op glob '[0-9]*' then cast(probe.op as integer)
                else first.graph_order end, rank;
)sql";

template <typename Member>
constexpr bool kIsMeasure = std::is_same_v<Member, double Stats::*>;

// Counts, then measures on a line of their own.
std::string TableColumns() {
  std::string counts, measures;
  Stats::ForEachNumber([&](const layout::Field& field, auto member) {
    constexpr bool kMeasure = kIsMeasure<decltype(member)>;
    (kMeasure ? measures : counts) +=
        fmt::format(", {} {}", field.name, kMeasure ? "real" : "integer");
  });
  return counts.substr(2) + ",\n  " + measures.substr(2);
}

// Measures, then counts with the sums that people ask for.
std::string ViewColumns() {
  std::string measures, counts;
  Stats::ForEachNumber([&](const layout::Field& field, auto member) {
    const std::string_view name = field.name;
    if (name == "count") return;
    if (name == "pos_inf") counts += "snapshot.pos_inf + snapshot.neg_inf as inf, ";
    (kIsMeasure<decltype(member)> ? measures : counts) += fmt::format("snapshot.{}, ", name);
    if (name == "neg_inf") {
      counts += "snapshot.nan + snapshot.pos_inf + snapshot.neg_inf as nonfinite, ";
    }
  });
  return measures + "\n         " + counts + "snapshot.count";
}

}  // namespace

const std::string& CatalogueSchema() {
  static const std::string schema =
      fmt::format(fmt::runtime(kSchema), TableColumns(), ViewColumns());
  return schema;
}

}  // namespace cgdebug::recording
