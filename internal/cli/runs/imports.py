# SPDX-License-Identifier: Apache-2.0
"""Prints what a script imports and this Python lacks: a line for each package, with the file and the line of its import.

It reads the script and the modules of the repository that the script imports, and runs none of them. It only counts imports that run
for certain: those at the top level of a file, in no condition and no try. A name that the repository has anywhere, or that is
imported after a file has changed sys.path, may be found by other means. A line "launcher" stands for what the launcher itself imports,
and the last line is "managed" if pip refuses to install into this Python (PEP 668).
"""
import ast
import importlib.util
import os
import site
import sys
import sysconfig

MOST_FILES = 500
# Packages that no script adds to sys.path by itself.
INSTALLED = ("torch", "deepspeed", "transformers", "accelerate", "lightning")
# The launcher's package, "" for none, the ranks' PYTHONPATH, and the paths, in the repository, of the files to run: the first one that
# exists.
top, launcher, python_path, *names = sys.argv[1:]
# Python runs isolated (-I), so that nothing of the repository is imported here. These are the folders that the ranks search as well.
if sys.prefix == sys.base_prefix:
    site.addsitedir(site.getusersitepackages())
sys.path[:0] = [os.path.join(top, entry) for entry in python_path.split(os.pathsep) if entry]


def lacks(name):
    try:
        return name != "mlenv" and importlib.util.find_spec(name) is None  # which the agent gives
    except Exception:
        return False


def is_package(folder):
    """Reports whether a folder has a module at any depth."""
    return any(file.endswith((".py", ".so")) for _, _, files in os.walk(folder) for file in files)


def files_of(folder, parts):
    """The files that an import of the dotted name runs, if it is in the folder."""
    found = []
    for part in parts:
        folder = os.path.join(folder, part)
        found += [path for path in (folder + ".py", os.path.join(folder, "__init__.py")) if os.path.isfile(path)][:1]
        if not os.path.isdir(folder):
            break
    return found


def imports_of(path, found_in):
    """Yields the top-level name, its line, and the files of the repository that each import runs."""
    with open(path, "rb") as file:
        text = file.read(1 << 24)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                yield parts[0], node.lineno, files_of(found_in, parts)
        elif isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            folder = found_in
            if node.level:
                folder = os.path.abspath(os.path.join(os.path.dirname(path), *[os.pardir] * (node.level - 1)))
            files = files_of(folder, parts)
            for alias in node.names:
                files += [file for file in files_of(folder, parts + [alias.name]) if file not in files]
            yield ("" if node.level else parts[0]), node.lineno, files


def missing_imports():
    """Returns the names that Python lacks, each with its file and line."""
    script = next((path for path in (os.path.join(top, name) for name in names) if os.path.isfile(path)), None)
    if script is None:
        return {}
    # A script's own folder is searched; a module's is the top of the repository.
    found_in = os.path.dirname(script) if len(names) == 1 else top
    missing, seen, waiting, elsewhere = {}, set(), [script], False
    while waiting and len(seen) < MOST_FILES:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        with open(path, "rb") as file:
            text = file.read(1 << 24)
        elsewhere |= b"sys.path" in text or b"addsitedir" in text or b"meta_path" in text
        for name, line, files in imports_of(path, found_in):
            waiting += files
            if name and not files and not is_package(os.path.join(found_in, name)) and name not in missing and lacks(name):
                missing[name] = "%s:%d" % (os.path.relpath(path, top), line)
    if missing:
        for path, folders, files in os.walk(top):
            # A file may be a module in another form, as an extension: name.cpython-312-x86_64-linux-gnu.so.
            for name in list(missing):
                if name in folders and is_package(os.path.join(path, name)) or any(file.startswith(name + ".") for file in files):
                    del missing[name]
    return {name: place for name, place in missing.items() if name in INSTALLED or not elsewhere}


missing = missing_imports()
if launcher and lacks(launcher):
    missing[launcher] = "launcher"
for name, place in missing.items():
    print(name, place)
if sys.prefix == sys.base_prefix and os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")):
    print("managed")
