"""Takes a picture of each report: take_pictures.py FOLDER REPORT.html ..."""

import pathlib
import shutil
import sys

from playwright.sync_api import sync_playwright


def main(folder, *reports):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox"],
        )
        for report in map(pathlib.Path, reports):
            page = browser.new_page(viewport={"width": 1240, "height": 860})
            page.goto(report.absolute().as_uri())
            page.wait_for_function("document.querySelector('#rows canvas').width > 100")
            picture = pathlib.Path(folder) / f"{report.stem}.png"
            page.screenshot(path=picture)
            print(f"{picture}: {picture.stat().st_size // 1024} KiB")
        browser.close()


main(*sys.argv[1:])
