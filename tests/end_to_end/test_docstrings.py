"""The examples in docstrings give what they say. `torch`, `np` and `equipoise` are taken as
imported.
"""

import doctest
import importlib
import pkgutil
import types

import numpy as np
import pytest
import torch

import equipoise

FINDER = doctest.DocTestFinder(exclude_empty=True)
ALONE = {"equipoise.__main__"}  # importing it runs the command
NOT_HERE = {"axolotl", "swift", "torchtitan", "triton"}  # slow tests fetch them


def examples():
    names = [found.name for found in pkgutil.walk_packages(equipoise.__path__, "equipoise.")]
    given = {"torch": torch, "np": np, "equipoise": equipoise}
    for name in sorted(set(names) - ALONE):
        for example in FINDER.find(module_if_here(name), extraglobs=given):
            if example.examples:
                yield pytest.param(example, id=example.name.removeprefix("equipoise."))


def module_if_here(name):
    """The module; an empty one where it needs a package that is fetched for slow tests only."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] not in NOT_HERE:
            raise
        return types.ModuleType(name)


@pytest.mark.parametrize("example", list(examples()))
def test_the_example_is_true(example):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert runner.run(example).failed == 0
