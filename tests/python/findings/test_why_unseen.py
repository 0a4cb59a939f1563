"""A fault whose decisive rows are lost is not called none: `why` says that it has not looked at them."""

import importlib
import os
import pathlib
import shutil

import pytest
from serve_programs import Programs

import cgdebug

# By detector: the script and the program with its fault.
PLANTED = {
    "bad_index": ("reported_memory", "the_metadata_are_for_fewer_rows_than_the_graph"),
    "foreign_write": ("reported_memory", "a_temporary_of_the_graph_lies_in_the_memory_of_another"),
    "lost_write": ("reported_memory", "the_output_is_overwritten_before_it_was_copied"),
    "late_read": ("reported_memory", "an_edge_of_the_graph_is_dropped"),
    "kept result": ("reported_memory", "the_graph_is_empty"),
    "overwritten": ("reported_memory", "the_end_of_a_copy_comes_too_late"),
    "scale of padding": ("reported_serving", "a_scale_of_the_whole_batch_counts_the_padding"),
    "zero_weights": ("reported_programs", "the_copy_of_the_weights_is_skipped_at_first"),
    "statistics of a batch norm": ("faulty_programs", "statistics_that_keep_nothing"),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    servers = {}

    def record(script, name, path, *watch):
        if script not in servers:
            file = pathlib.Path(importlib.import_module(script).__file__)
            servers[script] = Programs(file, tmp_path_factory.mktemp(script))
        servers[script].record(path, name, *watch)

    yield record
    for server in servers.values():
        server.close()


def cut_off(path, share):
    """A copy: what a job leaves that is killed when this share of it is written."""
    copy = path.with_name(f"{share}.cgrec")
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("catalogue.sqlite*"))
    (segment,) = copy.glob("segment-*.cgd")
    os.truncate(segment, int(segment.stat().st_size * share))
    return copy


@pytest.mark.parametrize("fault", PLANTED)
def test_what_is_cut_off_is_said_and_nothing_is_called_clean(
    daemon, cli, programs, tmp_path, fault
):
    script, name = PLANTED[fault]
    path = tmp_path / "a.cgrec"
    programs(script, name, path)
    kinds = importlib.import_module(script).EXPECTED[name][0].split()
    assert cgdebug.why(path).first.kind in kinds
    unfound = 0
    for share in (0.9, 0.6, 0.5, 0.3):
        cut = cut_off(path, share)
        causes = cgdebug.why(cut)
        assert any("ends early" in one for one in causes.not_looked_at), causes
        unfound += not {one.kind for one in causes} & set(kinds)
    assert unfound, "each cut has left the decisive rows"
    done = cli("why", str(cut))
    assert done.returncode == 3 and "not looked at: " in done.stdout, done.stdout


def test_what_no_row_shows_is_not_looked_at(daemon, cli, programs, tmp_path):
    path = tmp_path / "a.cgrec"
    programs(*PLANTED["lost_write"], path, "op:*,!encoder")
    causes = cgdebug.why(path)
    assert "lost_write" not in [one.kind for one in causes]
    assert "who wrote what 1 row reads and no row shows, the first fwd/head/addmm_0" in str(causes)
    assert cli("why", str(path)).returncode == 3
