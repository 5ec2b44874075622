"""The picture of the status page in docs/status.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import status_picture
from jobs.headless_browser import find_chromium
from sparklog.errors import SparklogError
from tests.examples import CHECKOUT

PNG = b"\x89PNG\r\n\x1a\n"


def test_the_document_shows_the_picture_and_names_its_command() -> None:
    text = (CHECKOUT / "docs" / "status.md").read_text(encoding="utf-8")
    assert "`python -m jobs.status_picture`" in text
    assert f"](images/{status_picture.PICTURE.name})" in text
    assert status_picture.PICTURE.read_bytes().startswith(PNG)


def test_the_story_loses_records_and_chromium_takes_its_picture(tmp_path: Path) -> None:
    status_picture.story(tmp_path, 0)
    page = tmp_path / "status.html"
    status_picture.write_page(tmp_path / "cluster", page)
    assert "records were lost: clicks-0, 120 records" in page.read_text(encoding="utf-8")
    try:
        chromium = find_chromium()
    except SparklogError as error:
        pytest.skip(str(error))
    assert status_picture.picture(chromium, page).startswith(PNG)
