"""Pages that are made when the site is built, so that they cannot fall behind the code. Named in mkdocs.yml."""

from typing import Any

from mkdocs.structure.files import File, Files

from docs.programs.api_reference import api_page
from docs.programs.command_reference import command_page
from docs.programs.http_reference import http_page
from docs.programs.table_reference import table_page

PAGES = {
    "reference/commands.md": command_page,
    "reference/table.md": table_page,
    "reference/http.md": http_page,
    "reference/python.md": api_page,
}


def on_files(files: Files, config: Any) -> Files:
    """Add them to the files of the site."""
    for name, make in PAGES.items():
        files.append(File.generated(config, name, content=make()))
    return files
