"""Claims about the bibliography: every source that the kit names is in it, whole."""

import json
import re

from mambanorm import NORMS
from mambanorm_study import TASKS
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.tables.bibliography import (
    FILE,
    bibliography,
    read_bibtex,
    references,
)

LABELS = set(bibliography().label)
ENTRY = "@article{key, author = {Wu, Yuxin and He, Kaiming}, title = {T}, year = {2018}}"


CITED = re.compile(r"([A-Z][\w’-]+(?: & [A-Z][\w’-]+| et al\.))(?:,? |, )\(?((?:19|20)\d\d)(?!\d)")


def cited(text: str) -> list[str]:
    """Return the sources that a text names as `Wu & He 2018` or `Ba et al. (2016)`, each once, in
    the order of the text.

    A single author counts only if the bibliography has one of that name and year, because `October
    2025` looks the same.
    """
    found = {match.start(): " ".join(match.groups()) for match in CITED.finditer(text)}
    for label in bibliography().label[lambda labels: ~labels.str.contains(" & | et al")]:
        who, year = label.rsplit(" ", 1)
        if match := re.search(rf"(?<!& )\b{re.escape(who)},? \(?{re.escape(year)}\b", text):
            found[match.start()] = label
    return list(dict.fromkeys(found[place] for place in sorted(found)))


def texts() -> dict[str, str]:
    """Return the kit's prose: the package, the notebooks' text, the READMEs, the protocol."""
    files = [
        *ROOT.glob("mambanorm/**/*.py"),
        *ROOT.glob("*.md"),
        *ROOT.glob("*/*.md"),
        *ROOT.glob("mambanorm/**/*.md"),
    ]
    said = {
        str(path.relative_to(ROOT)): path.read_text() for path in files if ".venv" not in path.parts
    }
    for path in ROOT.glob("notebooks/*.ipynb"):
        said[path.name] = "\n".join(
            "".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]
        )
    return said


def test_every_source_that_the_kit_names_is_in_the_bibliography():
    named = {
        (place, label)
        for place, text in texts().items()
        for label in cited(re.sub(r"\n[#> ]*", " ", text))
    }
    assert len(named) > 60
    assert not {(place, label) for place, label in named if label not in LABELS}


def test_the_source_of_every_norm_and_task_that_names_someone_resolves():
    for entry in (*NORMS.values(), *TASKS.values()):
        assert set(cited(entry.source)) <= LABELS
        for code in re.findall(r"\bS\d\b", entry.source):
            assert len(references(code)) == 1
    for entry in NORMS.values():
        if re.search(r"\b(19|20)\d\d\b", entry.source):
            assert cited(entry.source), f"{entry.source!r} has a year and names nobody"
    assert len({label for entry in TASKS.values() for label in cited(entry.source)}) > 12


def test_every_entry_is_whole_and_has_an_address_or_says_what_is_known():
    for reference in bibliography().itertuples():
        assert reference.title
        assert reference.authors
        assert re.fullmatch(r"(19|20)\d\d|n\.d\.", reference.year), reference.Index
        assert re.fullmatch(r"https?://\S+", reference.url) or reference.note, reference.Index
        assert not set("{}\\") & set(reference.title + reference.authors), reference.Index
    assert len(LABELS) == len(bibliography())


def test_authors_and_labels_are_read_as_bibtex_means_them():
    two = read_bibtex(ENTRY).loc["key"]
    assert (two.label, two.authors) == ("Wu & He 2018", "Yuxin Wu and Kaiming He")
    cut = read_bibtex(ENTRY.replace("He, Kaiming", "others")).loc["key"]
    assert (cut.label, cut.authors) == ("Wu et al. 2018", "Yuxin Wu and others")
    three = read_bibtex(ENTRY.replace("{Wu", "{Ba, Jimmy Lei and Wu")).loc["key"]
    assert (three.label, three.authors) == (
        "Ba et al. 2018",
        "Jimmy Lei Ba, Yuxin Wu and Kaiming He",
    )
    body = read_bibtex(
        ENTRY.replace("Wu, Yuxin and He, Kaiming", "{The and Company}".replace(" and ", " & "))
    ).loc["key"]
    assert body.label == "The & Company 2018"


def test_names_of_sources_are_found_in_a_text_and_months_are_not():
    text = (
        "As Wu & He (2018), Ba et al. 2016; Krizhevsky (2009), Figure 2015, in October 2025 and "
        "Nadeau & Bengio 2003a."
    )
    assert cited(text) == [
        "Wu & He 2018",
        "Ba et al. 2016",
        "Krizhevsky 2009",
        "Nadeau & Bengio 2003",
    ]
    assert cited("nobody, 2024") == []


def test_the_table_has_a_row_a_source():
    assert len(references()) == len(bibliography()) == FILE.read_text().count("\n@")
    assert list(references("S4", "ioffe2015batch").index) == [
        "Morrissey 2025",
        "Ioffe & Szegedy 2015",
    ]
