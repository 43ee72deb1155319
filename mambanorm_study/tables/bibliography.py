"""The bibliography: every source that the kit names, read from `references.bib`.

S1 to S5 are the five sources of the study: the paper, AutoNorm, an article of an encyclopaedia, a
guide and a poster.
"""

import re
from functools import cache
from pathlib import Path

import pandas as pd

from mambanorm.errors import unknown

FILE = Path(__file__).with_name("references.bib")


@cache
def bibliography() -> pd.DataFrame:
    """Return one row for each source, indexed by its BibTeX key, in the order of the file.

    Columns: label (how texts cite the source, such as `Wu & He 2018` or `Ba et al. 2016`), authors,
    title, year, published (journal, conference or repository), url, note, source ("S1" to "S5"). A
    missing field is "".
    """
    return read_bibtex(FILE.read_text(encoding="utf-8"))


def read_bibtex(text: str) -> pd.DataFrame:
    """Return the entries of a BibTeX text as a table like that of `bibliography`.

    Each entry needs the fields author, title and year.
    """
    import bibtexparser

    entries = bibtexparser.parse_string(text).entries
    return pd.DataFrame({entry.key: _row(entry) for entry in entries}).T


def _row(entry) -> dict[str, str]:
    fields = {
        name: re.sub("[{}]", "", field.value).strip() for name, field in entry.fields_dict.items()
    }
    people = [name.partition(", ") for name in re.split(r"\s+and\s+", fields["author"])]
    families = [family for family, _, _ in people]  # BibTeX: "Family, Given"
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


def references(*names: str) -> pd.DataFrame:
    """Return a table of the named sources, indexed by label (such as `Wu & He 2018`).

    Columns: title, authors, published, note, link. names: BibTeX keys, labels or numbers (S1 to S5)
    of sources; without names, all sources are returned. Raises ValueError for an unknown name; the
    message suggests the nearest known name.
    """
    table = bibliography()
    keys = pd.concat([pd.Series(table.index, known) for known in (table.source, table.label)])
    keys = {key: key for key in table.index} | keys.drop("").to_dict()
    for name in names:
        if name not in keys:
            raise unknown("source", name, keys)
    chosen = table.loc[[keys[name] for name in names or table.index]]
    chosen = chosen.rename(columns={"url": "link"}).set_index(chosen.label.rename("source"))
    return chosen[["title", "authors", "published", "note", "link"]]
