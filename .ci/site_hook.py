"""
Hooks of MkDocs for the documentation's site.

Pages link files outside `docs/`, such as schemas, with relative paths that work in the repository. The site
gets
those files under `repository/`, and the links are changed to lead there. A linked folder becomes a page that
lists
its files.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("docs/index.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINKS = re.compile(r"\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)]*)?\)")
SHOWN = (".json", ".yaml")
# A canonical link names the page's own address and loads nothing.
FROM_ELSEWHERE = re.compile(
    r"<(?:script|link|img|iframe)\b(?![^>]*\brel=\"?canonical)[^>]*\b(?:src|href)=\"?(?:https?:)?//",
    re.IGNORECASE,
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files and folders outside `docs/` that pages link, directly or through each other."""
    waiting = [*PAGES, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if not path.startswith("docs/"):
            files.append(_file_of(path, config))
        for linked in _links_of(path):
            if linked not in seen:
                seen.add(linked)
                waiting.append(linked)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the page's links to the places that their files have in the site."""
    here = page.file.src_uri
    path = here.removeprefix("repository/") if here.startswith("repository/") else f"docs/{here}"

    def changed(match: re.Match[str]) -> str:
        target = _target(path, match["path"])
        if target is None:
            return match[0]
        return (
            f"]({posixpath.relpath(_place(target), posixpath.dirname(here) or '.')}{match['anchor'] or ''})"
        )

    return LINKS.sub(changed, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that loads anything from another host."""
    if found := FROM_ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_uri} loads something from another host: {found[0]}")
    return output


def _links_of(path: str) -> Iterator[str]:
    """Files of the repository that a page of it links."""
    if path.endswith(".md"):
        for match in LINKS.finditer(_text_of(path)):
            if target := _target(path, match["path"]):
                yield target


def _target(path: str, link: str) -> str | None:
    """
    Path below the root of the file that a link in the file `path` leads to; None where there is nothing.

    A folder is its `README.md`, or else the `index.md` that the site gets for it.
    """
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    if target.startswith("..") or not (ROOT / target).exists():
        return None
    if (ROOT / target).is_dir():
        return f"{target}/README.md" if (ROOT / target / "README.md").is_file() else f"{target}/index.md"
    return target


def _place(target: str) -> str:
    """Path of a file of the repository within the site's sources."""
    return target.removeprefix("docs/") if target.startswith("docs/") else f"repository/{target}"


def _text_of(path: str) -> str:
    """The text of a page; where it does not exist, a list of the files beside it."""
    if (ROOT / path).is_file():
        return (ROOT / path).read_text("utf-8")
    folder = posixpath.dirname(path)
    names = sorted(file.name for file in (ROOT / folder).iterdir() if file.suffix in SHOWN)
    return f"# {folder}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)


def _file_of(path: str, config: MkDocsConfig) -> File:
    if path.endswith(".md"):
        return File.generated(config, _place(path), content=_text_of(path))
    return File.generated(config, _place(path), abs_src_path=str(ROOT / path))
