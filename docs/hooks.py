"""What the site needs beyond its settings: pages of the whole repository, GitHub's anchors, diagrams offline."""

from __future__ import annotations

import re
from importlib.resources import files as package
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).parents[1]
# Pages, and the files that they show or link to.
PARTS = (
    "*.md",
    "benchmarks/*.md",
    "docs/*.md",
    "docs/*.css",
    "docs/pictures/*.svg",
    "docs/pictures/*.webp",
    "deploy/*",
    "deploy/chart/monitoring/*",
    "examples/**/*",
)
MERMAID = "assets/javascripts/mermaid.js"
INCLUDED = InclusionLevel.INCLUDED


def anchor(title: str, _separator: str = "-") -> str:
    """The anchor of a heading, made as GitHub makes it.

    >>> anchor("... a `pretrain` command")
    '-a-pretrain-command'
    """
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


class Lists(Extension):
    """Lines of docstrings such as `rows: (n, d), raw units` become lists; so do names before their meanings."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = re.sub(r"^(\w+(?:, \w+)*): ", r"\n- **\1**: ", obj.docstring.value, flags=re.MULTILINE)
            text = re.sub(r"^ +(`[\w()]+`)  +", r"\n- \1: ", text, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"^(?=(?:Returns|Raises) )", "\n", text, flags=re.MULTILINE)


def on_config(config: MkDocsConfig) -> None:
    config.mdx_configs["toc"]["slugify"] = anchor


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Files of the repository under their own paths, so that its relative links work; those of the theme stay."""
    paths = [path for part in PARTS for path in sorted(ROOT.glob(part)) if path.is_file()]
    names = [path.relative_to(ROOT).as_posix() for path in paths if "__pycache__" not in path.parts]
    found = [File(name, str(ROOT), config.site_dir, config.use_directory_urls, inclusion=INCLUDED) for name in names]
    # The script that draws diagrams comes from an installed package; without it the theme would load it from a CDN.
    script = package("mermaidx").joinpath("assets", "mermaid.js").read_bytes()
    found.append(File.generated(config, MERMAID, content=script))
    return Files([*found, *(file for file in files if file.src_dir != config.docs_dir)])


def on_page_content(html: str, page: Page, **_: object) -> str:
    """Pages with a diagram load the script that draws it."""
    drawn = 'class="mermaid"' in html
    return html + (f'\n<script src="{get_relative_url(MERMAID, page.url)}"></script>' if drawn else "")
