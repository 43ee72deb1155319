"""The page of all explorers: its notebook, and the voila server that shows this notebook."""

import tempfile
import webbrowser
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from mambanorm_study.widgets import EXPLORERS

PORT = 8866
STYLE = """from IPython.display import HTML
cells = ".jp-Cell { max-width: 1040px; margin: 0 auto }"
pictures = ".mambanorm-picture { align-self: flex-start }"
HTML(f"<style>{cells} {pictures}</style>")"""
INTRO = """# mambanorm: explorers

Move a control, and the picture below it follows. The text under each picture says which data it
shows. Nothing leaves this machine."""
# The browser may load files from this server only. Otherwise voila's template would request unused
# icons from another server.
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; "
    "connect-src 'self' ws://127.0.0.1:*; frame-ancestors 'self'"
)


def explorers_notebook() -> nbformat.NotebookNode:
    """Return the page's notebook, which has a title, a text and a code cell for each explorer."""
    cells = [new_code_cell(STYLE), new_markdown_cell(INTRO)]
    for title, make in EXPLORERS.items():
        name, text = make.__name__, " ".join(make.__doc__.split())
        cells.append(new_markdown_cell(f"<h2>{title}</h2>\n\n{text}"))
        cells.append(new_code_cell(f"from mambanorm_study.widgets import {name}\n\n{name}()"))
    return new_notebook(
        cells=cells,
        metadata={
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "title": "mambanorm: explorers",
        },
    )


def serve(
    port: int | None = None, *, open_browser: bool = True, announce: Callable[[str], None] = print
) -> None:
    """Serve the page of all explorers at 127.0.0.1 until the process is interrupted. Each browser
    tab starts a kernel.

    port: None means 8866, or a port near it if 8866 is taken. announce: called with the address of
    the page, which includes the token. Raises ValueError if voila is not installed, and SystemExit
    if the given port is taken.
    """
    try:
        from voila.app import Voila
    except ModuleNotFoundError as error:
        raise ValueError(
            "the page of explorers needs voila, which is not installed here: pip install voila, or "
            "make lab"
        ) from error

    class Server(Voila):
        """A voila server that calls `announce` with its address, which includes the token. Its
        pages load files from no other server.
        """

        def init_settings(self) -> dict:
            return super().init_settings() | {"headers": {"Content-Security-Policy": POLICY}}

        def launch_browser(self) -> None:
            announce(self.display_url)
            if open_browser:
                webbrowser.open(self.display_url)

    with tempfile.TemporaryDirectory(prefix="mambanorm-explore-") as folder:
        path = Path(folder) / "explorers.ipynb"
        nbformat.write(explorers_notebook(), path)
        Server.launch_instance(argv=_voila_options(path, port))


def _voila_options(path: Path, port: int | None) -> list[str]:
    """Return voila's options, as command-line arguments: serve the notebook `path` to this machine
    only, require a token, and allow no template or theme in a URL.
    """
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
