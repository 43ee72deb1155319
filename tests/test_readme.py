"""Every command and every code block of the README and of docs/ works, and what they say was found is computed."""

import base64
import os
import re
import shlex
import subprocess
import sys

import nbformat
import pytest

import mambanorm as mn
from mambanorm.basics.settings import ROOT
from mambanorm.claims.findings import findings, findings_page, what_to_do
from mambanorm.cli import main as cli

README = (ROOT / "README.md").read_text()
PAGES = {page: page.read_text() for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))}
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", "\n".join(PAGES.values()), re.DOTALL)


def test_the_first_page_is_short_and_says_what_was_found():
    assert len(README.splitlines()) <= 120
    found = findings()
    assert 5 <= len(found) <= 6
    for sentences in (found, what_to_do()):
        assert "\n".join(f"- {sentence}" for sentence in sentences) in README


def test_the_published_page_is_what_the_recorded_results_make_and_asks_no_host():
    page = (ROOT / "docs" / "index.html").read_text()
    assert findings_page() == page, "python -m mambanorm.claims.findings writes it anew"
    assert len(page.encode()) < 200_000
    assert (ROOT / "docs" / ".nojekyll").is_file()
    addresses = re.findall(r"""(?:\s(?:src|href|srcset|action)="|url\(|@import)([^"\s)]{0,9})""", page)
    assert set(addresses) == {"data:imag"}  # the picture


def test_table_of_norms_is_made_from_the_registry():
    lines = ["| norm | statistics over | causal | learns | source |", "|---|---|---|---|---|"]
    for name, entry in mn.NORMS.items():
        axes, causal = " · ".join(entry.axes) or "–", "yes" if entry.causal else "no"
        lines.append(f"| `{name}` | {axes} | {causal} | {entry.learnable} | {entry.source} |")
    assert "\n".join(lines) in (ROOT / "docs" / "norms.md").read_text(), "\n".join(lines)


@pytest.mark.parametrize("code", [code for language, code in BLOCKS if language == "python"])
def test_python_blocks_run_as_scripts(code, store):
    script = store.parent / "script.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=store.parent)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", re.findall(r"^mambanorm [^\n]*", "\n".join(c for _, c in BLOCKS), re.MULTILINE))
def test_commands_are_understood(line):
    options = cli._parse(shlex.split(line, comments=True)[1:])
    for arm in getattr(options, "arms", None) or []:
        if not options.imports:  # those run below, with the files they import
            mn.Arm.parse(arm)


def test_the_norm_and_the_task_of_ones_own_train_from_the_command_line(store):
    (line,) = re.findall(r"^mambanorm (--import [^\n]*my_task.py [^\n]*)", "\n".join(PAGES.values()), re.MULTILINE)
    for kind in ("norm", "task"):
        (code,) = [code for _, code in BLOCKS if f"@mn.register_{kind}" in code]
        (store.parent / f"my_{kind}.py").write_text(code)
    argv = [*shlex.split(line), "--scale", "smoke", "--workers", "0"]
    options = dict(capture_output=True, text=True, cwd=store.parent, env=os.environ | {"PYTHONPATH": str(ROOT)})
    done = subprocess.run([sys.executable, "-m", "mambanorm", *argv], **options)
    assert done.returncode == 0, done.stderr
    assert "parity: test accuracy" in done.stdout


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake ([a-z]+)\b", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE) or target == "and", target


def test_files_that_the_readme_links_to_exist():
    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (page.parent / target).exists(), (page.name, target)


def test_every_name_of_the_package_on_a_page_or_in_a_notebook_exists():
    """Whatever stands as `mn.name` in the README, in docs/ or in notebooks/, in text and in code."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.md")]
    texts = {str(page.relative_to(ROOT)): page.read_text() for page in pages}
    for path in ROOT.glob("notebooks/*.ipynb"):
        texts[str(path.relative_to(ROOT))] = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
    used = {(page, name) for page, text in texts.items() for name in re.findall(r"\bmn\.([A-Za-z_]\w*)", text)}
    assert ("docs/training.md", "TransformerClassifier") in used
    assert len({page for page, _ in used}) > 10
    assert not [(page, name) for page, name in sorted(used) if not hasattr(mn, name)]


def test_files_that_contributors_are_led_to_exist():
    named = re.findall(r"`([\w/]+(?:\.(?:py|md|json)|/))`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 30
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "mambanorm" / name).exists(), name


def test_a_comparison_of_the_readme_has_the_same_numbers_in_every_notebook_that_prints_it():
    arm = r"([\w-]+→[\w-]+)\)?"
    told = re.compile(rf"{arm}(?: −| against) (?:[\w ]*\()?{arm}[^:\n]{{0,12}}: ([+−][^\]]+\])")
    own = {(a, b): amount for a, b, amount in told.findall((ROOT / "README.md").read_text())}
    assert {("GN→GN", "None→None"), ("NormVary→GN", "RMSN→None"), ("NormVary→LN", "LN→LN")} <= set(own)
    shown = set()
    for path in ROOT.glob("notebooks/*.ipynb"):
        cells = [c for c in nbformat.read(path, 4).cells if "solution" not in c.metadata.get("tags", ())]
        shown_by = [out.get("data", {}) for cell in cells for out in cell.get("outputs", ())]
        for text in (data.get("text/markdown", data.get("text/plain", "")) for data in shown_by):
            shown |= {(path.stem, (a, b), amount) for a, b, amount in told.findall(text) if (a, b) in own}
    assert {"09_vision", "11_choosing", "12_verdicts"} <= {name for name, _, _ in shown}
    assert not [(name, pair, amount) for name, pair, amount in shown if amount != own[pair]]


def test_the_picture_is_the_one_that_notebook_12_draws():
    notebook = nbformat.read(ROOT / "notebooks" / "12_verdicts.ipynb", as_version=4)
    (cell,) = [cell for cell in notebook.cells if "figures.fig_verdicts(" in cell.source]
    (drawn,) = [output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})]
    assert base64.b64decode(drawn) == (ROOT / "data" / "readme.png").read_bytes()
