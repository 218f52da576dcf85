"""What mkdocs does besides: formulas, links out of the documents, llms.txt, and a plain twin of
every page.

mkdocs calls the functions by their names (`hooks:` in mkdocs.yml).
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

from mathematics import with_mathml

# [text](../src/...), [text](../../examples/...): files of the repository, which the site has not
OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+((?:src|examples|benchmarks|tests|CONTRIBUTING)[/.]?[^)]*)\)"
)
OBJECT = re.compile(r"^::: (\S+)$", flags=re.MULTILINE)
INTRODUCTION = """\
# Equipoise

> Keeps the experts of a sparse Mixture-of-Experts evenly loaded, without an auxiliary loss.

Every page below is plain Markdown.
"""


def on_page_markdown(markdown, page, config, files):
    """Name the file where a link leads out of the site."""
    return OUTSIDE.sub(r"`\2`", markdown)


def on_page_content(content, page, config, files):
    """Formulas as MathML."""
    return with_mathml(content)


def on_post_build(config):
    """llms.txt, and page.md beside every page.html."""
    site, docs = Path(config.site_dir), Path(config.docs_dir)
    for source in sorted(docs.rglob("*.md")):
        name = source.relative_to(docs)
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(plain_text(source.read_text()))
    (site / "llms.txt").write_text(INTRODUCTION + "\n".join(listed(config.nav, docs)) + "\n")


def plain_text(markdown):
    """A page's own text, where it asks for a docstring with the docstring."""
    return OBJECT.sub(lambda found: signature_and_docstring(found[1]), markdown)


def signature_and_docstring(dotted):
    module, _, name = dotted.rpartition(".")
    thing = getattr(importlib.import_module(module), name)
    arguments = inspect.signature(thing) if callable(thing) else ""
    docstring = inspect.getdoc(thing) or ""
    members = "".join(documented_members(thing)) if inspect.isclass(thing) else ""
    return f"### {name}\n\n    {dotted}{arguments}\n\n" + indented(docstring) + members


def documented_members(kind):
    """Methods and properties that a class defines itself, each with its docstring."""
    for name, member in vars(kind).items():
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        arguments = "" if isinstance(member, property) else inspect.signature(function)
        yield f"\n\n#### {name}{arguments}\n\n" + indented(inspect.getdoc(function))


def indented(text):
    return "\n".join("    " + line if line else "" for line in text.splitlines())


def listed(entries, docs, level=2):
    """Headings and links of the navigation, each with the first sentence of its page."""
    for entry in entries:
        title, target = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
        if isinstance(target, list):
            yield f"\n{'#' * level} {title}\n"
            yield from listed(target, docs, level + 1)
        else:
            text = (docs / target).read_text()
            yield f"- [{title or first_heading(text)}]({target}): {first_sentence(text)}"


def first_heading(text):
    return re.search(r"^# (.+)$", text, flags=re.MULTILINE)[1]


def first_sentence(text):
    """Of the first paragraph that is neither heading, table, picture nor code."""
    for paragraph in re.split(r"\n\s*\n", text):
        if re.match(r"(?!```)[\w`]", paragraph):
            words = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            return re.split(r"(?<=[.])\s", words)[0]
    return ""
