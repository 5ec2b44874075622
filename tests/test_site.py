"""The site of docs/ builds, and no link in it is broken. GitHub renders the same pages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


def build(
    site: Path, configuration: Path = ROOT / "mkdocs.yml"
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    return subprocess.run(
        [*command, "--config-file", str(configuration), "--site-dir", str(site)],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"},
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with strict links."""
    if find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: it is in the extra docs")
    folder = tmp_path_factory.mktemp("site")
    built = build(folder)
    assert built.returncode == 0, built.stdout
    return folder


def test_every_document_is_a_page(site: Path) -> None:
    names = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"}
    assert names
    assert {path.stem for path in site.glob("*.html")} == names | {"index", "404"}


def test_a_link_to_a_file_of_the_checkout_leads_to_a_page_with_it(site: Path) -> None:
    text = (site / "running.html").read_text(encoding="utf-8")
    [target] = set(re.findall(r'href="(source/[^"]*broker\.yaml[^"]*)"', text))
    assert "cluster.root" in (site / target).read_text(encoding="utf-8")


def test_pages_request_nothing_from_other_hosts(site: Path) -> None:
    for name in ("index.html", "operating.html"):
        text = (site / name).read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|link rel="stylesheet")[^>]*"https?://[^"]*', text)


@pytest.mark.parametrize(
    "link", ["missing.md", "README.md#missing", "../missing.py", "images/missing.svg"]
)
def test_a_broken_link_fails_the_build(link: str, tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="it is in the extra docs")
    docs = tmp_path / "docs"
    (docs / "hooks").mkdir(parents=True)
    hook = (ROOT / "docs/hooks/source_links.py").read_text(encoding="utf-8")
    (docs / "hooks/source_links.py").write_text(hook, encoding="utf-8")
    (docs / "README.md").write_text(f"# A page\n\nA [link]({link}).\n", encoding="utf-8")
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text(text.split("\nnav:")[0], encoding="utf-8")
    built = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert built.returncode != 0
    assert "missing" in built.stdout


def test_every_program_and_configuration_of_a_document_is_tried() -> None:
    """A test names the document of each program; configurations and policies are parsed here."""
    tests = [file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py")]
    for path in (ROOT / "docs").glob("*.md"):
        text = path.read_text(encoding="utf-8")
        name = str(path.relative_to(ROOT))
        if "\n```python\n" in text:
            assert any(name in test for test in tests), f"no test runs the programs of {name}"
        for language, parse in (("yaml", yaml.safe_load), ("json", json.loads)):
            for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL):
                assert parse(block), f"{name}: {block}"


def test_links_of_pages_outside_of_the_site_lead_to_files() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (ROOT / target).exists(), f"{name}: {target}"
