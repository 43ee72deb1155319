"""All explorers as one page: the notebook behind it, and the server that shows it (voila, on this
machine only)."""

import re
import tempfile
import webbrowser
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from mambanorm_study.widgets import EXPLORERS

PORT = 8866
STYLE = """from IPython.display import HTML
HTML("<style>.jp-Cell { max-width: 1040px; margin: 0 auto } .mambanorm-picture { align-self: flex-start }</style>")"""
INTRO = """# mambanorm: explorers

Move a control, and the picture below it follows. What is recorded or made up is said under each picture. Nothing leaves
this machine."""
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; connect-src 'self' ws://127.0.0.1:*; "
    "frame-ancestors 'self'"
)
"""What the browser may fetch: of this server. Voila's template asks another for icons, which this
page does not use."""
MISSING = "the page of explorers needs voila, which is not installed here: pip install voila, or make setup"


def explorers_notebook() -> nbformat.NotebookNode:
    """The notebook of the page: an explorer of EXPLORERS a cell, under its title."""
    links = "\n".join(f"- [{title}](#{_anchor(title)})" for title in EXPLORERS)
    cells = [new_code_cell(STYLE), new_markdown_cell(f"{INTRO}\n\n{links}")]
    for title, make in EXPLORERS.items():
        what = " ".join(make.__doc__.partition("\n\n")[0].split())
        cells.append(new_markdown_cell(f'<h2 id="{_anchor(title)}">{title}</h2>\n\n{what}'))
        cells.append(
            new_code_cell(
                f"from mambanorm_study.widgets import {make.__name__}\n\n{make.__name__}()"
            )
        )
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(
        cells=cells, metadata={"kernelspec": kernel, "title": "mambanorm: explorers"}
    )


def _anchor(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def serve(
    port: int | None = None, *, open_browser: bool = True, tell: Callable[[str], None] = print
) -> None:
    """Shows the page at 127.0.0.1 until it is interrupted; `tell` gets its address, which holds the
    token.

    port: None = 8866, or one near it if that is taken. Each browser tab has a kernel of its own.
    ValueError where voila is not installed; SystemExit where the port that was asked for is taken.
    """
    try:
        from voila.app import Voila
    except ModuleNotFoundError as error:
        raise ValueError(MISSING) from error

    class Server(Voila):
        """Voila, with the token in the address that it opens, and without any other server."""

        def init_settings(self) -> dict:
            return super().init_settings() | {"headers": {"Content-Security-Policy": POLICY}}

        def launch_browser(self) -> None:
            tell(self.display_url)
            if open_browser:
                webbrowser.open(self.display_url)

    with tempfile.TemporaryDirectory(prefix="mambanorm-explore-") as folder:
        path = Path(folder) / "explorers.ipynb"
        nbformat.write(explorers_notebook(), path)
        Server.launch_instance(argv=_options(path, port))


def _options(path: Path, port: int | None) -> list[str]:
    """Voila's arguments: this machine only, a token, quiet, and no say for whoever visits the
    page."""
    return [
        str(path),
        "--Voila.ip=127.0.0.1",
        f"--Voila.port={PORT if port is None else port}",
        f"--Voila.port_retries={50 if port is None else 0}",
        "--Voila.auto_token=True",
        "--Voila.log_level=WARN",
        "--VoilaConfiguration.allow_template_override=NO",
        "--VoilaConfiguration.allow_theme_override=NO",
    ]
