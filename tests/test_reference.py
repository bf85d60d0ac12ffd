"""The reference pages say what the records say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from devmath import cli, reference


def test_all_plan_classes_have_a_page():
    assert [kind.kind_name for kind in reference.plans()] == ["FFT", "FFTN", "Philox"]


@pytest.mark.parametrize("kind", reference.plans(), ids=lambda k: k.kind_name)
def test_a_page_holds_every_function_argument_and_constant(kind):
    text = reference.page(kind)
    assert text.startswith(f"# {kind.kind_name}\n")
    for variant, table in kind.variants.items():
        title = f"## Device functions{f', {variant} execution' if len(kind.variants) > 1 else ''}\n"
        section = re.split(r"\n(?=## )", text[text.index(title) :])[0]
        for fn in table.values():
            part = re.search(rf"### `{re.escape(fn.signature())}`\n\n(.*?)(?=\n###|\Z)", section, re.DOTALL)
            assert part and fn.doc in part[1]
            assert all(f"- `{a.name}`: " in part[1] for a in fn.args)
            assert ("all threads of the block call it" in part[1]) == fn.cooperative
    assert all(f"`{name}`" in text for name in (*kind.constants, *kind.trait_names))


def test_the_command_prints_a_page(capsys):
    assert cli.main(["reference", "Philox"]) == 0
    assert capsys.readouterr().out == reference.page(next(k for k in reference.plans() if k.kind_name == "Philox"))


def test_the_site_builds(tmp_path):
    from mkdocs.commands import build
    from mkdocs.config import load_config

    build.build(load_config(str(Path(__file__).parent.parent / "mkdocs.yml"), site_dir=str(tmp_path / "site"), theme={"name": "mkdocs"}))
    assert "normal4_fast_scaled" in (tmp_path / "site" / "reference" / "Philox" / "index.html").read_text(encoding="utf-8")
