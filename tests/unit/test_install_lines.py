"""One place says how this package is installed: `outbox.extras` in errors, docs/conf.py on the site."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.features import ROOT

MADE_HERE = {"outbox/extras.py", "docs/conf.py"}
FOLDERS = ("outbox", "relay", "local", "migrations", "spark_etl", "docs")


def test_no_page_and_no_error_installs_from_an_index_that_has_no_release() -> None:
    found = []
    for path in [ROOT / "README.md", *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.*"))]:
        name = path.relative_to(ROOT).as_posix()
        if path.suffix not in {".md", ".py"} or name in MADE_HERE or name.startswith("docs/adr/"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(r"pip install [^`]*outbox-kafka", line) and "``" not in line:
                found.append(f"{name}:{number}")
    assert found == ["relay/outbox_relay/__main__.py:3"], "which tells of the name alone"


def test_a_release_changes_the_lines_of_all_pages() -> None:
    line = "pip install '.[sqlalchemy,relay]'  # and pip install '/other[relay]'"
    code = f"import sys; sys.path.insert(0, 'docs'); import conf; text = {line!r}\n"
    code += "print(conf.with_install_line(text)); conf.RELEASED = True; print(conf.with_install_line(text))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [line, line.replace("'.[", "'outbox-kafka[")]


def test_a_difference_on_a_page_names_no_folder_of_the_builder(tmp_path: Path) -> None:
    for name in ("before", "after"):
        (tmp_path / f"{name}.py").write_text(f"print('{name}')\n")
    (tmp_path / "index.md").write_text("# Page\n\n```{literalinclude} after.py\n:diff: before.py\n```\n")
    own = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nextensions = ['myst_parser', 'conf_of_docs']\n"
    (tmp_path / "conf.py").write_text(own)
    (tmp_path / "conf_of_docs.py").write_text((ROOT / "docs" / "conf.py").read_text(encoding="utf-8"))
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(tmp_path), str(tmp_path / "site")],
        check=True,
    )
    text = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "after.py" in text
    assert str(tmp_path) not in text
