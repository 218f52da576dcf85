"""The examples in docstrings give what they say. `torch`, `np` and `equipoise` are taken as
imported.
"""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest
import torch

import equipoise

FINDER = doctest.DocTestFinder(exclude_empty=True)
ALONE = {"equipoise.__main__"}  # importing it runs the command


def examples():
    names = [found.name for found in pkgutil.walk_packages(equipoise.__path__, "equipoise.")]
    given = {"torch": torch, "np": np, "equipoise": equipoise}
    for name in sorted(set(names) - ALONE):
        for example in FINDER.find(importlib.import_module(name), extraglobs=given):
            if example.examples:
                yield pytest.param(example, id=example.name.removeprefix("equipoise."))


@pytest.mark.parametrize("example", list(examples()))
def test_the_example_is_true(example):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert runner.run(example).failed == 0
