"""Every Python example of the documentation runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from devmath import plan

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def blocks(page: Path) -> str:
    """The page's Python examples, in order, with blank lines so that line numbers are the page's."""
    lines = page.read_text(encoding="utf-8").splitlines()
    inside, kept = False, []
    for line in lines:
        if line.startswith("```"):
            inside = line.strip() == "```python"
            kept.append("")
        else:
            kept.append(line if inside else "")
    return "\n".join(kept)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_examples_run(page):
    code = blocks(page)
    assert re.search(r"\S", code), f"{page.name} has no example"
    before = set(plan._REGISTRY)
    try:
        exec(compile(code, str(page), "exec"), {"__name__": "__main__"})
    finally:
        for name in set(plan._REGISTRY) - before:  # plan classes that an example declares are its own
            del plan._REGISTRY[name]
