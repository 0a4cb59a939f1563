"""Takes pictures of reports and of what a terminal shows: take_pictures.py FOLDER PICTURE...

PICTURE is REPORT.html; REPORT.html:PROBE, which shows that probe down to its values; or TEXT.txt.
"""

import html
import pathlib
import shutil
import sys

from playwright.sync_api import sync_playwright

TERMINAL = """<!doctype html><meta charset="utf-8">
<style>
  body { margin: 0; background: #16181d; color: #e4e6eb; }
  pre { margin: 0; padding: 16px 20px; width: max-content; font: 14px/1.45 "DejaVu Sans Mono", monospace; }
  b { color: #7fd4a8; font-weight: normal; }
</style><pre>%s</pre>"""


def open_report(page, path, probe):
    page.set_viewport_size({"width": 1240, "height": 860})
    page.goto(path.absolute().as_uri())
    page.wait_for_function("document.querySelector('#rows canvas').width > 100")
    if not probe:
        return
    page.get_by_role("button", name=probe, exact=False).first.click()
    assert page.locator("#detail-title").inner_text() == probe
    bottom = page.locator("#detail canvas[role=img]").last.bounding_box()
    page.set_viewport_size({"width": 1240, "height": int(bottom["y"] + bottom["height"]) + 40})


def open_terminal(page, path):
    lines = html.escape(path.read_text()).splitlines()
    lines = [f"<b>{line}</b>" if line.startswith("$ ") else line for line in lines]
    page.set_content(TERMINAL % "\n".join(lines))
    box = page.locator("pre").bounding_box()
    page.set_viewport_size({"width": int(box["width"]), "height": int(box["height"])})


def main(folder, *pictures):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox"],
        )
        for picture in pictures:
            name, _, probe = picture.partition(":")
            path = pathlib.Path(name)
            page = browser.new_page()
            open_terminal(page, path) if path.suffix == ".txt" else open_report(page, path, probe)
            taken = pathlib.Path(folder) / f"{path.stem}.png"
            page.screenshot(path=taken)
            print(f"{taken}: {taken.stat().st_size // 1024} KiB")
        browser.close()


main(*sys.argv[1:])
