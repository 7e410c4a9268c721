"""Every page has one frozen context and one template, and they agree field by field."""

from __future__ import annotations

import dataclasses
import doctest
import hashlib
import re
from pathlib import Path

import pytest
from jinja2 import nodes
from jinja2.meta import find_undeclared_variables

from service.web import words
from service.web.render import PAGES, STATIC, TEMPLATES, environment, static_path


def parsed(template: str) -> nodes.Template:
    return environment().parse((TEMPLATES / template).read_text(encoding="utf-8"))


def fields_used(template: str) -> set[str]:
    return {
        node.attr
        for part in (template, "base.html")
        for node in parsed(part).find_all(nodes.Getattr)
        if isinstance(node.node, nodes.Name) and node.node.name == "page"
    }


@pytest.mark.parametrize("context", PAGES, ids=lambda context: context.__name__)
def test_a_page_uses_every_field_of_its_context_and_no_other(context: type):
    assert fields_used(PAGES[context]) == {field.name for field in dataclasses.fields(context)}
    assert context.__dataclass_params__.frozen


@pytest.mark.parametrize("context", PAGES, ids=lambda context: context.__name__)
def test_a_page_gets_nothing_but_its_context(context: type):
    template = parsed(PAGES[context])
    macros = {name for imports in template.find_all(nodes.FromImport) for name in imports.names}
    assert find_undeclared_variables(template) - macros == {"page"}


def test_every_template_of_a_page_belongs_to_a_context():
    found = {f"pages/{path.name}" for path in (TEMPLATES / "pages").iterdir()}
    assert found == set(PAGES.values())


@pytest.mark.parametrize("path", sorted(TEMPLATES.rglob("*.html")), ids=lambda path: path.name)
def test_templates_neither_switch_escaping_off_nor_hold_inline_code(path: Path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\|\s*safe|autoescape|\sstyle=|\son[a-z]+=|javascript:", text)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", text)


def test_static_files_are_named_by_their_content():
    digest = hashlib.sha256((STATIC / "app.css").read_bytes()).hexdigest()
    assert static_path("app.css") == f"/static/app.css?v={digest[:12]}"


def test_the_examples_of_the_words_hold():
    result = doctest.testmod(words)
    assert result.attempted > 5
    assert result.failed == 0


def themes() -> dict[str, dict[str, str]]:
    text = (STATIC / "app.css").read_text(encoding="utf-8")
    roots = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    light, dark = (dict(re.findall(r"--([a-z-]+): (#[0-9a-fA-F]{6})", root)) for root in roots)
    return {"light": light, "dark": dark}


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"),
    [(ink, ground) for ink in ("ink", "soft", "link") for ground in ("card", "ground")]
    + [(tone, f"{tone}-soft") for tone in ("cause", "clear", "caution", "quiet", "live")]
    + [(tone, "card") for tone in ("cause", "clear", "caution", "quiet", "live")],
)
def test_text_is_readable_in_both_themes(theme: str, text: str, ground: str):
    colours = themes()[theme]
    light, dark = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5
