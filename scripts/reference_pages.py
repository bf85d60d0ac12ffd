"""mkdocs hook: adds a reference page for each plan class, written from its records. Build the pages with `mkdocs build`."""

from mkdocs.structure.files import File, Files

from devmath import reference


def on_files(files: Files, config) -> Files:
    """Add the generated pages to those that are kept in docs/."""
    for kind in reference.plans():
        files.append(File.generated(config, f"reference/{kind.kind_name}.md", content=reference.page(kind)))
    return files
