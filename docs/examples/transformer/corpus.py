# SPDX-License-Identifier: Apache-2.0
"""The text: the docstrings of Python's standard library, which every training image has.

It is about 1.4 MB of English and code. The same Python gives the same bytes: modules are sorted by path, docstrings by their
position in the module.
"""

import ast
import pathlib
import sysconfig
from collections import Counter
from math import log

LEAST_BYTES = 1_000_000
NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}


def load():
    """Returns (training text, held-out text) as bytes: the docstrings of every tenth module are held out.

    Raises RuntimeError if the library has no sources or no docstrings.
    """
    library = pathlib.Path(sysconfig.get_paths()["stdlib"])
    modules = [path for path in library.rglob("*.py") if not NOT_LIBRARY.intersection(path.relative_to(library).parts)]
    parts = [], []
    for number, path in enumerate(sorted(modules, key=lambda path: path.relative_to(library).as_posix())):
        parts[number % 10 == 9].extend(_docstrings(path))
    train, heldout = ("\n\n".join(part).encode() for part in parts)
    if len(train) + len(heldout) < LEAST_BYTES:
        raise RuntimeError(
            f"reading docstrings below {library}: {len(train) + len(heldout)} bytes in {len(modules)} modules: "
            f"want at least {LEAST_BYTES}"
        )
    return train, heldout


def _docstrings(path):
    try:
        module = ast.parse(path.read_bytes())
    except SyntaxError:  # a template, not a module
        return
    for node in ast.walk(module):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if docstring := ast.get_docstring(node):
                yield docstring


def unigram_entropy(text):
    """Returns the entropy of the text's single bytes, in nats per byte. No model that ignores their order can reach a lower loss."""
    return -sum(count / len(text) * log(count / len(text)) for count in Counter(text).values())
