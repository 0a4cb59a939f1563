"""What recordings look like in a notebook."""

import math
import sys

import numpy
import pytest
from test_report import EVIL, write_recording

import cgdebug
from conftest import ROOT


@pytest.fixture
def recording(tmp_path):
    def value(i, replay):
        return [1.0, -2.0 * 10**replay, math.nan if i == 1 and replay >= 3 else 3.0]

    return cgdebug.open(
        write_recording(tmp_path / "a.cgrec", 2, 5, value, shape=(2, 3), names=["x", EVIL[0]])
    )


def test_a_notebook_shows_every_probe_with_a_mark_where_it_has_nan(recording):
    shown = recording._repr_html_()
    assert shown.count("<tr>") == 3
    assert "▁▃▅▆█" in shown.replace("▅▇", "▅▆") and "!!!" in shown
    assert "<script>" not in shown and "&lt;script&gt;" in shown


def test_a_notebook_shows_a_series_and_a_snapshot_in_numbers(recording):
    assert "float32[2, 3]" in recording["x"]._repr_html_()
    shown = recording[EVIL[0]][3]._repr_html_()
    assert "<td style='text-align:left'>2</td>" in shown  # two NaN
    assert "<script>" not in shown


def test_a_notebook_shows_the_verdict_of_check_and_diff(recording, tmp_path):
    shown = recording.check()._repr_html_()
    assert shown.startswith("<p><b>✗ found</b> first non-finite: replay 3")
    assert "&lt;script&gt;" in shown and "<script>" not in shown
    assert "<b>✓ same</b>" in recording.diff(recording, "x")._repr_html_()
    lossy = cgdebug.open(
        write_recording(tmp_path / "b.cgrec", 1, 5, lambda i, replay: replay, lost={(0, 2)})
    )
    assert "<b>? inconclusive</b>" in lossy.check()._repr_html_()


def test_plots_mark_what_is_not_finite(recording):
    pytest.importorskip("matplotlib").use("agg")
    ax = recording[EVIL[0]].plot()
    assert ax.get_yscale() == "log" and [line.get_label() for line in ax.lines] == [
        "abs_max",
        "std",
    ]
    assert "NaN or Inf in 3 replays" in ax.get_title() and len(ax.patches) == 3
    assert numpy.array_equal(ax.lines[0].get_ydata(), recording[EVIL[0]].stat("abs_max"))
    ax = recording[EVIL[0]][4].plot()
    assert "red: 2 NaN or Inf" in ax.get_title()
    assert ax.images[0].get_array().mask.sum() == 2


@pytest.fixture
def ipython():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "cgdebug")
    yield shell
    InteractiveShell.clear_instance()


def test_a_cell_under_the_magic_shows_the_op_that_made_the_first_nan(daemon, ipython):
    cell = "import torch\nx = torch.zeros(3)\ny = x / x\nz = y + 1"
    ran = ipython.run_cell("%%cgdebug mine\n" + cell)
    assert ran.success
    assert ran.result.first_nonfinite.op == "aten.div.Tensor"
    assert ipython.user_ns["mine"] is ran.result
    shown = ran.result._repr_html_()
    assert "✗ found" in shown and "div" in shown
    assert "add" not in shown.partition("more rows")[0], "what came behind it is left out"


def test_a_cell_that_is_right_finds_nothing_and_a_wrong_word_names_the_right_ones(daemon, ipython):
    ran = ipython.run_cell("%%cgdebug\nimport torch; torch.ones(3) * 2")
    assert "✓ nothing found" in ran.result._repr_html_()
    assert not ipython.run_cell("%%cgdebug --level kernels\n1").success
    assert ipython.run_cell("%%cgdebug\n1").result is None


def test_of_many_probes_those_with_findings_come_first(tmp_path):
    path = write_recording(
        tmp_path / "many.cgrec", 100, 2, lambda i, replay: numpy.nan if i == 77 else 1.0
    )
    shown = cgdebug.open(path)._repr_html_()
    assert "1 of 100 with NaN or Inf" in shown
    rows = shown.partition("<tbody>")[2].split("<tr>")
    assert "77" in rows[1]
    assert "and 70 more" in shown


def test_a_recording_draws_one_statistic_of_what_is_selected(recording):
    pytest.importorskip("matplotlib").use("Agg")
    axes = recording.plot(stat="max")
    assert len(axes.get_lines()) == len(recording.series)
    with pytest.raises(ValueError, match="recording.probes"):
        recording.plot("no-such-*")


def test_a_notebook_and_a_plot_tell_of_what_was_lost_or_cannot_be_read(tmp_path):
    pytest.importorskip("matplotlib").use("agg")
    path = write_recording(
        tmp_path / "b.cgrec", 2, 5, lambda i, replay: replay + 10 * i, lost={(0, 2), (0, 3)}
    )
    segment = next(path.glob("segment*"))
    data = bytearray(segment.read_bytes())
    at = data.index(numpy.full(6, 14, "float32").tobytes())  # probe 1, replay 4
    data[at - 150] ^= 1  # in the record's head or what is known of it
    segment.write_bytes(data)
    r = cgdebug.open(path)
    rows = r._repr_html_().split("<tr>")[2:]
    assert [row.split("</td>")[5].split(">")[1] for row in rows] == ["2", "1"]
    assert "2 snapshots are missing" in r["layers.0.out"].plot().get_title()


def test_a_debug_mode_that_saw_no_capture_says_how_to_log_eager_code(daemon):
    import torch

    with cgdebug.debug_mode() as log:
        torch.ones(2) * 2
    assert repr(log).endswith("0 logs of captures; eager=True logs what runs eagerly>")


def test_plot_without_matplotlib_says_what_to_install(recording, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        recording["x"].plot()


def test_the_example_notebook_runs(tmp_path, no_daemon, monkeypatch):
    monkeypatch.setenv("CGDEBUG", "1")
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    path = ROOT / "python" / "examples" / "recordings.ipynb"
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # they would be of some machine
    client = nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    assert any("first non-finite" in str(one.get("data", {}).get("text/html")) for one in outputs)
    assert sum("image/png" in one.get("data", {}) for one in outputs) == 2


def test_a_line_of_a_cell_is_named_by_the_cell(daemon, ipython):
    ipython.run_cell("1", store_history=True)
    number = ipython.execution_count
    ran = ipython.run_cell(
        "import cgdebug, torch\n\n"
        "def called():\n"
        "    p = cgdebug.CudaGraphTensorProbe('cell', [cgdebug.TensorRecord()], mode='always')\n"
        "    p(torch.ones(2))\n"
        "    site = p.status().slots[0].site\n"
        "    p.close()\n"
        "    return site\n"
        "called()",
        store_history=True,
    )
    assert ran.result == f"In[{number}]:5 in called"
