"""The HTML report in a browser: headless Chromium, driven by Playwright."""

import math
import os
import re
import shlex
import shutil
import subprocess
import unicodedata

import numpy
import pytest
import recording_writer
from test_report import EVIL, cli, write_recording

from conftest import find_program

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None
)


def need(condition, what):
    """A test of CI that cannot run is a failure there."""
    if condition:
        return
    if os.environ.get("CGDEBUG_REQUIRE_BROWSER") == "1":
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    need(sync_playwright, "no Playwright here. Type: pip install playwright axe-playwright-python")
    need(CHROMIUM, "no browser here. Type: apt-get install chromium")
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield opened
        opened.close()


@pytest.fixture
def open_report(browser, tmp_path, record_property):
    """open_report(SOURCE, ...) makes a report and opens it; afterwards nothing may have gone wrong
    in the page, and nothing but the file may have been asked for."""
    wrong, asked, pages = [], [], []

    def make(*sources, dark=False, width=1360, edit=None):
        output = tmp_path / f"{len(pages)}.html"
        made = cli("report", *sources, "-o", output)
        assert made.returncode == 0, made.stderr
        if edit is not None:
            output.write_text(edit(output.read_text(encoding="utf-8")), encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(output.as_uri())
        paint = page.evaluate(
            "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
        )
        record_property("first paint, ms", paint)
        print(f"first paint after {paint} ms")
        pages.append(page)
        return page

    yield make
    assert wrong == []
    assert [url for url in asked if not url.startswith(("file://", "data:"))] == []
    assert len([url for url in asked if url.startswith("file://")]) == len(pages)
    for page in pages:
        page.context.close()


def spreading(i, replay):
    """Grows, then Inf in probe 2 of replay 6, and NaN in all that follow."""
    value = numpy.full((4, 6), 1.5**replay * (i + 1), "float32")
    value[0, 1] *= -1
    if replay >= 6 and i >= 2:
        value[1, 2] = math.inf if i == 2 else math.nan
    return value


NAMES = ["embed", "blk0.attn", "blk0.mlp", "blk1.attn", "blk1.mlp"]


def write_calls(path, calls=10_000, lengths=64):
    """An eager op log of three rows a call, of tensors of so many lengths."""
    writer = recording_writer.Writer(str(path))
    session = writer.add_session("0" * 32, "job", -1)
    rows = [
        [
            writer.add_slot(session, name, "float32", (1 + length, 4), graph_id=0, in_body=True)
            for name in ("fwd/embedding_0", "fwd/linear_0", "fwd/softmax_0")
        ]
        for length in range(lengths)
    ]
    for call in range(1, calls + 1):
        length = call * 37 % lengths
        for place, slot in enumerate(rows[length]):
            value = math.nan if call > calls - 10 and place == 2 else 1 + call % 9
            tensor = numpy.full((1 + length, 4), value, "float32")
            writer.append(slot, call, tensor, stats_only=True)
    writer.close()
    return path


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")

    def make(name, *arguments, **options):
        return write_recording(folder / f"{name}.cgrec", *arguments, **options)

    recording_writer.Writer(str(folder / "empty.cgrec")).close()
    return {
        "nan": make("nan", 5, 10, spreading, shape=(4, 6), names=NAMES),
        "fine": make("fine", 5, 10, lambda i, r: 1.5**r * (i + 1), shape=(4, 6), names=NAMES),
        "gaps": make("gaps", 3, 30, lambda i, r: i + r, lost={(1, r) for r in range(9, 15)}),
        "many": make(
            "many",
            1000,
            8,
            lambda i, r: math.nan if i >= 900 and r > 4 else i + r,
            names=[f"fwd/layers.{i // 10}.part{i % 10}" for i in range(1000)],
        ),
        "long": make("long", 1, 1800, lambda i, r: math.nan if r == 1007 else r),
        "one": make("one", 1, 4, lambda i, r: i + r),
        "calls": write_calls(folder / "calls.cgrec"),
        "ids": make("ids", 1, 3, lambda i, r: 50254 + r, dtype="int64", lost={(0, 2)}),
        "long_names": make(
            "long_names",
            3,
            8,
            lambda i, r: math.nan if r > 5 else r,
            names=[f"fwd/model.layers.{i}.self_attention.{'projection_' * 6}{i}" for i in range(3)],
            lost={(1, 3)},
        ),
        "middles": make(
            "middles",
            17,
            3,
            lambda i, r: i + r,
            names=[f"fwd/model.layers.{i}.self_attention.output_projection" for i in range(17)],
        ),
        "wide": make(
            "wide",
            3,
            3,
            lambda i, r: i + r,
            names=[f"fwd/模型.层级{i}.{'自注意力机制' * 4}.输出投影矩阵{i}" for i in range(3)],
        ),
        "evil": make("evil", 4, 3, lambda i, r: r, names=EVIL),
        "empty": folder / "empty.cgrec",
    }


def detail(page):
    return page.locator("#detail-title").inner_text()


def test_a_report_begins_with_the_verdict_and_shows_where_it_began(open_report, sources):
    page = open_report(sources["nan"])
    assert (
        page.locator("#verdict-title")
        .inner_text()
        .endswith("First non-finite: replay 6, blk0.mlp (probe 3 of 5 in graph order)")
    )
    assert (
        "1 +Inf of 24 elements, the first at [1, 2]" in page.locator("#verdict-more").inner_text()
    )
    command = page.locator("#next code").first.inner_text()
    assert command == f"cgdebug-cli show {sources['nan']}:blk0.mlp@6 --where nan"
    folder = os.path.dirname(find_program("cgdebug-cli"))
    shown = subprocess.run(
        ["sh", "-c", command.replace("cgdebug-cli", "cgdebug-cli --no-spawn", 1)],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
    )
    assert shown.returncode in (0, 1) and "inf" in shown.stdout, shown.stderr
    assert detail(page) == "blk0.mlp"
    assert page.locator("#rows .row").count() == 5


def test_a_click_on_a_cell_shows_that_probe_and_that_replay(open_report, sources):
    page = open_report(sources["nan"])
    canvas = page.locator('.row[data-place="1"] canvas')
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] * 0.25, "y": box["height"] / 2})
    assert detail(page) == "blk0.attn"
    here = page.locator("#detail").inner_text()
    assert "Replay 3" in here and "abs max 6.75" in here  # 1.5**3 * 2
    canvas.hover(position={"x": box["width"] * 0.95, "y": box["height"] / 2})
    assert page.locator("#tip").inner_text().splitlines()[:2] == ["blk0.attn", "replay 10"]


def test_no_axis_is_longer_than_its_plot(open_report, sources):
    for page in (open_report(sources["ids"]), open_report(sources["nan"], sources["fine"])):
        too_long = page.evaluate("""
            [...document.querySelectorAll("#detail svg")].filter((plot) =>
                [...plot.querySelectorAll(".domain")].some((line) =>
                    line.getBoundingClientRect().right > plot.getBoundingClientRect().right))
              .map((plot) => plot.getAttribute("aria-label"))
        """)
        assert page.locator("#detail svg").count() > 2 and too_long == []


def test_a_click_on_a_cell_of_many_replays_shows_the_one_that_is_not_finite(open_report, sources):
    page = open_report(sources["long"])
    canvas = page.locator('.row[data-place="0"] canvas')
    box = canvas.bounding_box()
    assert box["width"] < 900  # so a cell has several columns, and each of these two replays
    canvas.click(position={"x": box["width"] * 0.1, "y": box["height"] / 2})
    here = page.locator("#detail").inner_text()
    assert "NaN;" not in here and "cgdebug-cli stats" in here
    canvas.click(position={"x": box["width"] * 503.5 / 900, "y": box["height"] / 2})
    here = page.locator("#detail").inner_text()
    assert "Replays 1007..1008" in here and "6 NaN; abs max 1008" in here
    assert f"cgdebug-cli check {sources['long']} layers.0.out --replays 1007..1008" in here


def test_a_row_is_marked_with_n_only_if_it_has_nan(open_report, sources):
    page = open_report(sources["nan"])
    names = [one.strip() for one in page.locator("#rows .row > button").all_inner_texts()]
    assert names == ["embed", "blk0.attn", "∞ blk0.mlp", "N blk1.attn", "N blk1.mlp"]


def test_what_check_calls_a_mask_is_listed_and_is_no_finding_to_go_to(open_report, sources):
    def as_mask(html):
        return html.replace('"kind":"nonfinite"', '"kind":"mask"').replace(
            '"bad":true', '"bad":false'
        )

    page = open_report(sources["nan"], edit=as_mask)
    names = [one.strip() for one in page.locator("#rows .row > button").all_inner_texts()]
    assert names == NAMES and not page.locator("#next-finding").is_visible()
    page.check("#only-findings")
    assert page.locator("#rows .row").count() == 3


def test_a_report_of_calls_says_calls(open_report, tmp_path):
    writer = recording_writer.Writer(str(tmp_path / "calls.cgrec"))
    session = writer.add_session("0" * 32, "job", -1)
    slot = writer.add_slot(session, "fwd/0", "float32", (2,), graph_id=0, in_body=True)
    for call in range(1, 4):
        writer.append(slot, call, numpy.full(2, call, "float32"))
    writer.close()
    page = open_report(tmp_path / "calls.cgrec")
    assert page.locator("#overview-title").inner_text() == "Probes over calls"
    assert "of calls 1..3" in page.locator("#detail").inner_text()
    assert "eplay" not in page.locator("#detail").inner_text()


def test_whole_numbers_are_whole_and_nothing_is_said_of_what_was_not_read(open_report, sources):
    page = open_report(sources["ids"])
    here = page.locator("#detail").inner_text()
    assert "max 50257" in here
    assert "in none of the 2 that were read" in here and "never" not in here


def test_statistics_without_a_histogram_are_not_called_not_finite(open_report, sources):
    def as_of_the_gpu(text):
        return re.sub(r'"counts":\[[\d,]+\]', '"counts":[0]', text)

    page = open_report(sources["ids"], edit=as_of_the_gpu)
    here = page.locator("#detail").inner_text()
    assert "Only statistics were recorded, which have no histogram." in here
    assert "No finite value" not in here


def test_the_command_asks_for_no_elements_where_only_statistics_were_recorded(
    open_report, tmp_path
):
    writer = recording_writer.Writer(str(tmp_path / "a.cgrec"))
    slot = writer.add_slot(writer.add_session("0" * 32, "job", -1), "x", "float32", (2,))
    writer.append(slot, 1, numpy.float32([1, math.nan]), stats_only=True)
    writer.close()
    page = open_report(tmp_path / "a.cgrec")
    assert page.locator("#next code").first.inner_text().endswith("a.cgrec:x@1")


def test_the_command_names_the_job_where_a_source_has_several(open_report, tmp_path):
    writer = recording_writer.Writer(str(tmp_path / "jobs.cgrec"))
    for i, job in enumerate(("first", "second")):
        slot = writer.add_slot(writer.add_session(str(i) * 32, job, -1), "x", "float32", (2,))
        writer.append(slot, 1, numpy.float32([1, math.nan if i else 2]))
    writer.close()
    page = open_report(tmp_path / "jobs.cgrec")
    command = page.locator("#next code").first.inner_text()
    assert command.endswith("jobs.cgrec:x@1 -s second --where nan")
    shown = cli(*shlex.split(command)[1:])
    assert shown.returncode in (0, 1) and "nan" in shown.stdout, shown.stderr


def test_keys_go_through_probes_replays_and_findings(open_report, sources):
    page = open_report(sources["nan"])
    page.keyboard.press("ArrowDown")
    assert detail(page) == "blk1.attn"
    for _ in range(2):
        page.keyboard.press("ArrowUp")
    assert detail(page) == "blk0.attn"
    page.keyboard.press("ArrowLeft")
    assert "Replay 5" in page.locator("#detail").inner_text()
    page.keyboard.press("n")
    assert detail(page) == "blk0.mlp" and "Replay 6" in page.locator("#detail").inner_text()
    page.keyboard.press("/")
    page.keyboard.type("attn")
    assert page.locator("#rows .row").count() == 2
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.tagName") == "BUTTON"
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    assert page.locator("#rows .row").count() == 5


def pixels(page, place, x):
    """The colours in a column of a strip, x from 0 to 1."""
    return page.evaluate(
        """([place, x]) => {
          const canvas = document.querySelector(`.row[data-place="${place}"] canvas`);
          const copy = document.createElement("canvas");
          copy.width = canvas.width;
          copy.height = canvas.height;
          const context = copy.getContext("2d", { willReadFrequently: true });
          context.drawImage(canvas, 0, 0);
          const data = context.getImageData(Math.floor(canvas.width * x), 0, 1, canvas.height).data;
          const colours = [];
          for (let i = 0; i < data.length; i += 4) colours.push(data.slice(i, i + 4).join(","));
          return colours;
        }""",
        [place, x],
    )


def test_nan_inf_and_gaps_differ_in_colour_and_in_shape(open_report, sources):
    page = open_report(sources["nan"])
    page.wait_for_function("document.querySelector('.row[data-place=\"4\"] canvas').width > 400")
    nan, inf, number = (
        set(pixels(page, place, x)) for place, x in ((4, 0.72), (2, 0.72), (0, 0.72))
    )
    assert "196,0,79,255" in nan and "224,112,0,255" in inf
    assert not (nan | inf) & number
    page = open_report(sources["gaps"])
    page.wait_for_function("document.querySelector('.row[data-place=\"1\"] canvas').width > 400")
    hatched = [set(pixels(page, 1, x / 30)) for x in (9.2, 9.4, 9.6)]
    assert all(len(colours) > 3 for colours in hatched)  # lines on a ground, not one colour
    assert "Inconclusive" in page.locator("#verdict-title").inner_text()
    page.keyboard.press("ArrowDown")
    assert "6 snapshots" in page.locator("#detail").inner_text()


def test_a_thousand_probes_are_folded_by_module_and_searched(open_report, sources):
    page = open_report(sources["many"])
    assert page.locator("#rows .row").count() == 110  # 100 modules, one of them unfolded
    page.get_by_role("button", name="fwd/layers.3, 10 probes").click()
    assert page.locator("#rows .row").count() == 120
    page.fill("#search", "*layers.98.*3")
    assert page.locator("#rows .row").count() == 1  # a single hit needs no header
    page.fill("#search", "")
    page.check("#only-findings")
    assert page.locator(".row[data-place]").count() == 100
    page.uncheck("#only-findings")
    page.click("#unfold")
    assert page.locator(".row[data-place]").count() == 1000
    page.fill("#search", "no such probe")
    assert page.get_by_text("No probe matches.").is_visible()


def test_two_sources_lie_side_by_side_with_their_difference(open_report, sources):
    page = open_report(sources["fine"], sources["nan"])
    assert "First difference" in page.locator("#verdict-title").inner_text()
    assert page.locator('.row[data-place="0"] canvas').count() == 3
    heads = page.locator("#heads .strips .head").all_inner_texts()
    assert [text.split()[0] for text in heads] == ["A", "B", "A"]
    assert page.locator("#detail .side-name").count() == 2
    page.select_option("#mode", "relative")
    page.locator('.row[data-place="4"] > button').click()
    assert "by NaN or Inf" in page.locator("#detail .findings").inner_text()


@pytest.mark.parametrize("width", [420, 1360])
def test_names_that_differ_in_their_middle_are_told_apart(open_report, sources, width):
    page = open_report(sources["middles"], width=width)
    shown = page.locator("#rows .row > button").all_inner_texts()
    assert len(shown) == 17 == len(set(shown)), shown
    assert all("projection" in name for name in shown), shown
    assert page.locator("#rows .strips").first.bounding_box()["width"] >= 120, "room for columns"


@pytest.mark.parametrize(("width", "room"), [(420, 18), (1360, 34)])
def test_names_in_wide_letters_have_room_for_their_end(open_report, sources, width, room):
    page = open_report(sources["wide"], width=width)
    shown = page.locator("#rows .row > button").all_inner_texts()
    assert [name[-3:] for name in shown] == ["矩阵0", "矩阵1", "矩阵2"]
    for name in shown:
        columns = sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in name)
        assert columns <= room, name


def test_names_are_text_and_nothing_else(open_report, sources):
    page = open_report(sources["evil"])
    names = page.locator("#rows .row > button").all_inner_texts()
    assert names[0] == "<script>alert(1)</script>"
    assert "\\u001b[31m\\u0000\\u0007" in names[1] and "\\u202e" in names[2]
    for row in page.locator("#rows .row > button").all():
        row.click()
    assert page.locator("img").count() == 0


def test_an_empty_source_says_so(open_report, sources):
    page = open_report(sources["empty"])
    assert "No probe" in page.locator("#verdict-title").inner_text()
    assert page.get_by_text("There is no probe in it.").is_visible()
    for key in ("ArrowDown", "ArrowLeft", "n", "/"):
        page.keyboard.press(key)


def test_a_report_of_one_probe_is_fine(open_report, sources):
    page = open_report(sources["one"])
    assert page.locator("#rows .row").count() == 1 and detail(page) == "layers.0.out"
    for key in ("ArrowDown", "ArrowUp", "ArrowLeft", "n", "/"):
        page.keyboard.press(key)


def test_ten_thousand_calls_of_several_lengths_lead_to_the_first_that_is_not_finite(
    open_report, sources
):
    page = open_report(sources["calls"])
    assert "9991" in page.locator("#verdict-title").inner_text().replace(" ", "")
    for key in ("ArrowDown", "ArrowRight", "n"):
        page.keyboard.press(key)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_fault_and_nothing_is_wider_than_the_window(open_report, sources, dark):
    try:
        from axe_playwright_python import sync_playwright as axe
    except ImportError:
        axe = None
    need(axe, "no axe here. Type: pip install axe-playwright-python")
    light = (["many"], ["long_names"], ["empty"], ["one"], ["calls"])
    for chosen in (["nan"], ["fine", "nan"]) if dark else light:
        page = open_report(*(sources[one] for one in chosen), dark=dark)
        found = [
            (one["id"], one["help"], [node["html"][:200] for node in one["nodes"][:3]])
            for one in axe.Axe().run(page).response["violations"]
        ]
        assert found == [], chosen
        for width in (420, 800, 2560):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, chosen


def test_a_probe_of_one_source_has_the_room_of_both(open_report, sources):
    page = open_report(sources["nan"], sources["ids"])
    facts, box = (page.locator(f"#detail {one}").bounding_box() for one in (".facts", ".sides"))
    assert (facts["x"], facts["width"]) == (box["x"], box["width"])


def test_a_narrow_window_has_everything_below_each_other(open_report, sources):
    page = open_report(sources["nan"], width=420)
    overview, below = (page.locator(one).bounding_box() for one in ("#overview", "#detail"))
    assert below["y"] > overview["y"] + overview["height"] - 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
