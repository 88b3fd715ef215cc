"""The text: the docstrings of Python's own standard library, which every image that can train has.

About 1.4 MB of English with code in it. The same Python gives the same bytes: modules in order of their path, docstrings in
order of their place.
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

    Raises RuntimeError where the library has been stripped of its sources or its docstrings.
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
    """The entropy of the text's bytes, each taken alone, in nats a byte: no model that ignores order can do better on it."""
    return -sum(count / len(text) * log(count / len(text)) for count in Counter(text).values())
