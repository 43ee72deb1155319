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
    """Return one row an entry, by its key, in the file's order.

    Columns: label (how texts name it: `Wu & He 2018`, `Ba et al. 2016`), authors, title, year,
    published (journal, conference or repository), url, note, source ("S1" to "S5"). An empty text
    stands for a missing field.
    """
    return read_bibtex(FILE.read_text(encoding="utf-8"))


def read_bibtex(text: str) -> pd.DataFrame:
    """Return the entries of a BibTeX text as in `bibliography`. Each entry needs author, title and
    year.
    """
    import bibtexparser

    entries = bibtexparser.parse_string(text).entries
    return pd.DataFrame({entry.key: _row(entry) for entry in entries}).T


def _row(entry) -> dict[str, str]:
    fields = {
        name: re.sub("[{}]", "", field.value).strip() for name, field in entry.fields_dict.items()
    }
    people = [name.partition(", ") for name in re.split(r"\s+and\s+", fields["author"])]
    families = [family for family, _, _ in people]  # names stand as Family, Given
    full_names = [f"{given} {family}".strip() for family, _, given in people]
    if len(families) == 2 and families[1] != "others":
        who = " & ".join(families)
    else:
        who = f"{families[0]} et al." if len(families) > 1 else families[0]
    authors = " and ".join(filter(None, [", ".join(full_names[:-1]), full_names[-1]]))
    places = [fields[name] for name in ("journal", "booktitle", "howpublished") if name in fields]
    return {
        "label": f"{who} {fields['year']}",
        "authors": authors,
        "published": ", ".join(places),
        **{name: fields.get(name, "") for name in ("title", "year", "url", "note", "source")},
    }


def find_reference(name: str) -> pd.Series:
    """Return the entry with this key or label, or S1…S5. ValueError for an unknown one, with the
    nearest.
    """
    table = bibliography()
    keys: dict[str, str] = {}
    for names in (table.source, table.label, table.index):
        keys.update(zip(names, table.index, strict=True))
    keys.pop("", None)
    if name not in keys:
        raise unknown("source", name, keys)
    return table.loc[keys[name]]


def references(*names: str) -> pd.DataFrame:
    """Return the sources as a table: who and when (the index), title, authors, published, note,
    link.

    names: keys, labels or S1…S5; none = all sources. ValueError for an unknown name.
    """
    chosen = pd.DataFrame([find_reference(name) for name in names]) if names else bibliography()
    table = chosen.rename(columns={"url": "link"}).set_index(chosen.label.rename("source"))
    return table[["title", "authors", "published", "note", "link"]]
