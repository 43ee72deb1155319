"""The bibliography: every source that the kit names, read from `references.bib`.

S1…S5 are the five sources of the study: the paper, AutoNorm, an encyclopaedia's article, a guide
and a poster.
"""

import re
from functools import cache
from pathlib import Path

import pandas as pd

from mambanorm.errors import unknown

FILE = Path(__file__).with_name("references.bib")


@cache
def bibliography() -> pd.DataFrame:
    """One row an entry, by its key, in the file's order: label (how texts name it: `Wu & He 2018`,
    `Ba et al. 2016`), authors, title, year, published (journal, conference or repository), url,
    note, source ("S1" to "S5"). An empty text stands for what is not known."""
    return read_bibtex(FILE.read_text(encoding="utf-8"))


def read_bibtex(text: str) -> pd.DataFrame:
    """BibTeX → the same, by bibtexparser. Each entry needs author, title and year."""
    import bibtexparser

    return pd.DataFrame(
        {entry.key: _row(entry) for entry in bibtexparser.parse_string(text).entries}
    ).T


def _row(entry) -> dict[str, str]:
    fields = {
        name: re.sub("[{}]", "", field.value).strip() for name, field in entry.fields_dict.items()
    }
    people = [
        name.partition(", ") for name in re.split(r"\s+and\s+", fields["author"])
    ]  # Family, Given
    first, *rest = [family for family, _, _ in people]
    *others, last = [f"{given} {family}".strip() for family, _, given in people]
    who = (
        f"{first} & {rest[0]}"
        if len(rest) == 1 and rest != ["others"]
        else f"{first} et al."
        if rest
        else first
    )
    where = [fields[name] for name in ("journal", "booktitle", "howpublished") if name in fields]
    authors = f"{', '.join(others)} and {last}" if others else last
    known = {name: fields.get(name, "") for name in ("title", "year", "url", "note", "source")}
    return (
        dict(label=f"{who} {fields['year']}", authors=authors, published=", ".join(where)) | known
    )


def find_reference(name: str) -> pd.Series:
    """The entry with this key or label, or S1…S5. ValueError for an unknown one, with the
    nearest."""
    table = bibliography()
    keys = {row.source: key for key, row in table.iterrows()} | dict(
        zip(table.label, table.index, strict=True)
    )
    keys |= {key: key for key in table.index}
    if name not in keys or not name:
        raise unknown("source", name, filter(None, keys))
    return table.loc[keys[name]]


def references(*names: str) -> pd.DataFrame:
    """The sources as a table: who and when (the index), title, authors, published, note, link. All
    of them, or those named by key, label or S1…S5. ValueError for an unknown name."""
    chosen = pd.DataFrame([find_reference(name) for name in names]) if names else bibliography()
    table = chosen.rename(columns={"url": "link"}).set_index(chosen.label.rename("source"))
    return table[["title", "authors", "published", "note", "link"]]
