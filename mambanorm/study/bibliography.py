"""The bibliography: every source that the kit names, read from `references.bib`.

S1…S5 are the five sources of the study: the paper, AutoNorm, an encyclopaedia's article, a guide and a poster.
"""

import re
from functools import cache
from pathlib import Path

import pandas as pd

from mambanorm.basics.errors import unknown

FILE = Path(__file__).with_name("references.bib")
NEEDED = ("author", "title", "year")


@cache
def bibliography() -> pd.DataFrame:
    """One row an entry, by its key, in the file's order: label (how texts name it: `Wu & He 2018`, `Ba et al. 2016`),
    authors, title, year, published (journal, conference or repository), url, note, source ("S1" to "S5"). An empty text
    stands for what is not known. ValueError for an entry that cannot be read or lacks a field, naming it."""
    return read_bibtex(FILE.read_text(encoding="utf-8"))


def read_bibtex(text: str) -> pd.DataFrame:
    """BibTeX → the same, by bibtexparser. ValueError for what cannot be read, a key that comes twice, and an entry
    without author, title or year."""
    import bibtexparser

    library = bibtexparser.parse_string(text)
    if library.failed_blocks:
        block = library.failed_blocks[0]
        raise ValueError(f"BibTeX line {block.start_line + 1} cannot be read: {type(block).__name__}, {block.error}")
    return pd.DataFrame({entry.key: _row(entry) for entry in library.entries}).T


def _row(entry) -> dict[str, str]:
    fields = {name: re.sub("[{}]", "", field.value).strip() for name, field in entry.fields_dict.items()}
    if missing := [name for name in NEEDED if not fields.get(name)]:
        raise ValueError(f"entry {entry.key!r} of the bibliography lacks {', '.join(missing)}: needed are {NEEDED}")
    people = [name.partition(", ") for name in re.split(r"\s+and\s+", fields["author"])]  # Family, Given
    first, *rest = [family for family, _, _ in people]
    *others, last = [f"{given} {family}".strip() for family, _, given in people]
    who = f"{first} & {rest[0]}" if len(rest) == 1 and rest != ["others"] else f"{first} et al." if rest else first
    where = [fields[name] for name in ("journal", "booktitle", "howpublished") if name in fields]
    authors = f"{', '.join(others)} and {last}" if others else last
    known = {name: fields.get(name, "") for name in ("title", "year", "url", "note", "source")}
    return dict(label=f"{who} {fields['year']}", authors=authors, published=", ".join(where)) | known


def find_reference(name: str) -> pd.Series:
    """The entry with this key or label, or S1…S5. ValueError for an unknown one, with the nearest."""
    table = bibliography()
    keys = {row.source: key for key, row in table.iterrows()} | dict(zip(table.label, table.index, strict=True))
    keys |= {key: key for key in table.index}
    if name not in keys or not name:
        raise unknown("source", name, filter(None, keys))
    return table.loc[keys[name]]


CITED = re.compile(r"([A-Z][\w’-]+(?: & [A-Z][\w’-]+| et al\.))(?:,? |, )\(?((?:19|20)\d\d)(?!\d)")


def cited(text: str) -> list[str]:
    """The sources that a text names as `Wu & He 2018` or `Ba et al. (2016)`, each once, in the order of the text. A
    single author is found only if the bibliography has one of that name and year, for `October 2025` looks the same."""
    found = {match.start(): " ".join(match.groups()) for match in CITED.finditer(text)}
    for label in bibliography().label[lambda labels: ~labels.str.contains(" & | et al")]:
        who, year = label.rsplit(" ", 1)
        if match := re.search(rf"(?<!& )\b{re.escape(who)},? \(?{re.escape(year)}\b", text):
            found[match.start()] = label
    return list(dict.fromkeys(found[place] for place in sorted(found)))


def references(*names: str) -> pd.DataFrame:
    """The sources as a table, one row each: who and when (the index), title, authors, published, note, link. All of
    them, or those named by key, label or S1…S5. ValueError for an unknown name."""
    chosen = pd.DataFrame([find_reference(name) for name in names]) if names else bibliography()
    table = chosen.rename(columns={"url": "link"}).set_index(chosen.label.rename("source"))
    return table[["title", "authors", "published", "note", "link"]]


def references_markdown(*names: str) -> str:
    """The same as a Markdown table: a title leads to its work where an address is known."""
    lines = ["| source | title | authors |", "|---|---|---|"]
    for ref in map(find_reference, names or bibliography().index):
        title = f"[{ref.title}]({ref.url})" if ref.url else ref.title
        more = ". ".join(filter(None, (ref.published, ref.note)))
        mark = f" ({ref.source})" if ref.source else ""
        lines.append(f"| {ref.label}{mark} | {title}{f'. {more}' if more else ''} | {ref.authors} |")
    return "\n".join(lines)
