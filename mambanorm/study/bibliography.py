"""The bibliography: every source that the kit names, read from `references.bib`.

    bibliography     key → Reference, in the file's order
    find_reference   one of them, by its key, by how a text names it ("Wu & He 2018") or as "S1" to "S5"
    cited            text → the names of sources in it
    references       a table for a notebook;   references_markdown: the same for docs/sources.md, with links

S1…S5 are the five sources of the study: the paper, AutoNorm, an encyclopaedia's article, a guide and a poster.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from mambanorm.basics.errors import unknown

FILE = Path(__file__).with_name("references.bib")
NEEDED = ("author", "title", "year")


@dataclass(frozen=True)
class Reference:
    """One entry of the file. Empty texts stand for what is not known."""

    key: str
    authors: tuple[str, ...]
    """"Given Family", or an organisation; the last is "others" where the list is cut."""
    families: tuple[str, ...]
    title: str
    year: str
    published: str
    """Journal, conference or repository."""
    url: str
    note: str
    source: str
    """"S1" to "S5" for the five sources of the study."""

    @property
    def label(self) -> str:
        """How texts name it: `Krizhevsky 2009`, `Wu & He 2018`, `Ba et al. 2016`."""
        first, *rest = self.families
        two = len(rest) == 1 and rest != ["others"]
        who = f"{first} & {rest[0]}" if two else f"{first} et al." if rest else first
        return f"{who} {self.year}"

    @property
    def names(self) -> str:
        """All authors: `Yuxin Wu and Kaiming He`."""
        *first, last = ["others" if name == "others" else name for name in self.authors]
        return f"{', '.join(first)} and {last}" if first else last


@cache
def bibliography() -> dict[str, Reference]:
    """Key → entry. ValueError for an entry that cannot be read or lacks a field, naming it."""
    return read_bibtex(FILE.read_text(encoding="utf-8"))


def read_bibtex(text: str) -> dict[str, Reference]:
    """BibTeX → key → entry, by bibtexparser. ValueError for what cannot be read, a key that comes twice, and an entry
    without author, title or year."""
    import bibtexparser

    library = bibtexparser.parse_string(text)
    if library.failed_blocks:
        block = library.failed_blocks[0]
        raise ValueError(f"BibTeX line {block.start_line + 1} cannot be read: {type(block).__name__}, {block.error}")
    return {entry.key: _reference(entry) for entry in library.entries}


def _reference(entry) -> Reference:
    fields = {name: field.value.strip() for name, field in entry.fields_dict.items()}
    if missing := [name for name in NEEDED if not fields.get(name)]:
        raise ValueError(f"entry {entry.key!r} of the bibliography lacks {', '.join(missing)}: needed are {NEEDED}")
    pairs = [_author(name.strip()) for name in re.split(r"\s+and\s+", fields.pop("author"))]
    authors, families = zip(*pairs, strict=True)
    plain = {name: re.sub("[{}]", "", value) for name, value in fields.items()}
    where = [plain[name] for name in ("journal", "booktitle", "howpublished") if name in plain]
    known = {name: plain.get(name, "") for name in ("title", "year", "url", "note", "source")}
    return Reference(entry.key, authors, families, published=", ".join(where), **known)


def _author(name: str) -> tuple[str, str]:
    """`Wu, Yuxin` → `Yuxin Wu`, `Wu`; `{Wikipedia}` → twice itself."""
    family, _, given = name.strip("{}").partition(", ")
    return f"{given} {family}".strip(), family


def find_reference(name: str) -> Reference:
    """The entry with this key or label, or S1…S5. ValueError for an unknown one, with the nearest."""
    entries = bibliography()
    by_name = {reference.label: reference for reference in entries.values()} | entries
    by_name |= {reference.source: reference for reference in entries.values() if reference.source}
    if name not in by_name:
        raise unknown("source", name, by_name)
    return by_name[name]


CITED = re.compile(r"([A-Z][\w’-]+(?: & [A-Z][\w’-]+| et al\.))(?:,? |, )\(?((?:19|20)\d\d)(?!\d)")


def cited(text: str) -> list[str]:
    """The sources that a text names as `Wu & He 2018` or `Ba et al. (2016)`, each once, in the order of the text. A
    single author is found only if the bibliography has one of that name and year, for `October 2025` looks the same."""
    single = [ref.label for ref in bibliography().values() if len(ref.families) == 1]
    found = {match.start(): " ".join(match.groups()) for match in CITED.finditer(text)}
    for label in single:
        who, year = label.rsplit(" ", 1)
        if match := re.search(rf"(?<!& )\b{re.escape(who)},? \(?{re.escape(year)}\b", text):
            found[match.start()] = label
    return list(dict.fromkeys(found[place] for place in sorted(found)))


def references(*names: str) -> pd.DataFrame:
    """The sources as a table, one row each: who and when (the index), title, authors, published, note, link. All of
    them, or those named by key, label or S1…S5. ValueError for an unknown name."""
    chosen = [find_reference(name) for name in names] or list(bibliography().values())
    rows = [
        dict(source=ref.label, title=ref.title, authors=ref.names, published=ref.published, note=ref.note, link=ref.url)
        for ref in chosen
    ]
    return pd.DataFrame(rows).set_index("source")


def references_markdown(*names: str) -> str:
    """The same as a Markdown table: a title leads to its work where an address is known."""
    lines = ["| source | title | authors |", "|---|---|---|"]
    for ref in [find_reference(name) for name in names] or bibliography().values():
        title = f"[{ref.title}]({ref.url})" if ref.url else ref.title
        more = ". ".join(filter(None, (ref.published, ref.note)))
        mark = f" ({ref.source})" if ref.source else ""
        lines.append(f"| {ref.label}{mark} | {title}{f'. {more}' if more else ''} | {ref.names} |")
    return "\n".join(lines)
