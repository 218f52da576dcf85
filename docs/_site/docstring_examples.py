"""The section "Example:" of our docstrings, as griffe wants it: "Examples:", or its code would be
shown as a quotation.
"""

import re

import griffe


class DocstringExamples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **rest: object) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(
                r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )
