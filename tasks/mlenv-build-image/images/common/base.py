# SPDX-License-Identifier: Apache-2.0
"""Keeps the packages of the base image: its torch, its numpy, and what they were built with.

    base.py record CONTEXT FOLDER   before anything is installed
    base.py verify CONTEXT FOLDER   after everything is installed

CONTEXT is the flavour's folder, FOLDER has the record. record writes base.json
(the packages of the base), base-constraints.txt (the same for pip),
constraints.txt (the same, packages that pip cannot replace, and the rest of
CONTEXT/lock*.txt) and each lock*.txt without the packages that stay. verify
imports the packages in CONTEXT/base-packages, compares them with the record,
checks the requirements of all packages that the flavour added, and looks for
the programs in the list `programs` next to this file.
"""

import fnmatch
import hashlib
import importlib
import json
import pathlib
import re
import shutil
import sys
from importlib import metadata

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.specifiers import SpecifierSet


class Refused(Exception):
    """The base or the finished image does not fit this flavour."""


def name_of(distribution):
    """Returns the normalized name, as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def rows(path):
    """Yields the lines of a file without comments, each split at white space."""
    for line in path.read_text().splitlines():
        fields = line.split("#")[0].split()
        if fields:
            yield fields


def installed():
    """Returns the first distribution of each name that Python finds, by name."""
    found = {}
    for distribution in metadata.distributions():
        found.setdefault(name_of(distribution.metadata["Name"]), distribution)
    return found


def state(distribution, module):
    """Returns what must not change: versions, location, and a hash of the list of installed files."""
    files = distribution.read_text("RECORD") or distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    found = {
        "version": distribution.version,
        "place": str(distribution.locate_file("")),
        "files": hashlib.sha256(files.encode()).hexdigest(),
    }
    if module != "-":
        loaded = importlib.import_module(module)
        found["module"] = module
        found["file"] = loaded.__file__
        found["module_version"] = str(getattr(loaded, "__version__", ""))
    return found


def base_packages(context):
    """Yields the name and state of each installed package in CONTEXT/base-packages, and checks its version."""
    have = installed()
    for pattern, module, *wanted in rows(context / "base-packages"):
        matches = fnmatch.filter(have, pattern)
        if not matches and module != "-":
            raise Refused(f"checking the base image: {pattern} is missing; want {pattern}{' '.join(wanted)}")
        for name in matches:
            found = state(have[name], module)
            check(name, found["version"], *wanted)
            yield name, found


def check(name, version, wanted=""):
    """Raises Refused if the version does not fit the flavour."""
    if not SpecifierSet(wanted).contains(version, prereleases=True):
        raise Refused(f"checking {name}: found version {version}; want {wanted}")


def not_removable():
    """Returns packages that pip cannot replace: the system's packages installed them without a list of their files."""
    if sys.prefix != sys.base_prefix:
        return {}  # in a virtual environment pip shadows them
    return {n: d.version for n, d in installed().items() if d.read_text("RECORD") is None}


def pins(versions):
    return "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


def locks(context):
    """Returns the files that list what pip may install: NAME==VERSION, and hashes if the flavour has them."""
    return sorted(context.glob("lock*.txt"))


def locked_name(row):
    return name_of(row[0].split("==")[0])


def record(context, folder):
    base = dict(base_packages(context))
    own = {name: found["version"] for name, found in base.items()}
    stays = not_removable() | own
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "base.json").write_text(json.dumps(base, indent=2) + "\n")
    (folder / "base-constraints.txt").write_text(pins(own))
    constraints = pins(stays)
    for path in locks(context):
        rest = [row for row in rows(path) if locked_name(row) not in stays]
        (folder / path.name).write_text("".join(" ".join(row) + "\n" for row in rest))
        constraints += "".join(f"{row[0]}\n" for row in rest)
    (folder / "constraints.txt").write_text(constraints)
    print("the base has", ", ".join(f"{name} {found['version']}" for name, found in base.items()))


def verify(context, folder):
    before = json.loads((folder / "base.json").read_text())
    now = dict(base_packages(context))
    for name in before:  # the lock pins packages that were added later
        if now.get(name) != before[name]:
            raise Refused(f"comparing {name} with the base image's: found {now.get(name)}; want {before[name]}")
    added = {locked_name(row): None for path in locks(context) for row in rows(path)}
    have = installed()
    broken = [problem for name in [*before, *added] for problem in unmet(name, have)]
    if broken:
        raise Refused("checking requirements: " + "; ".join(broken))
    missing = [program for program, in rows(pathlib.Path(__file__).with_name("programs")) if not shutil.which(program)]
    if missing:
        raise Refused(f"looking for programs in PATH: {', '.join(missing)} not found; want them from the flavour's packages")
    print("unchanged:", ", ".join(f"{name} {found['version']}" for name, found in before.items()))


def unmet(name, have):
    """Yields the requirements of a distribution that the installed packages do not meet."""
    if name not in have:
        return  # belongs to a set that the build left out
    for text in have[name].requires or []:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        found = have.get(name_of(requirement.name))
        if found is None or not requirement.specifier.contains(found.version, prereleases=True):
            yield f"{name} {have[name].version} requires {requirement}; found {found.version if found else 'nothing'}"


def main():
    verb, context, folder = sys.argv[1:]
    try:
        {"record": record, "verify": verify}[verb](pathlib.Path(context), pathlib.Path(folder))
    except Refused as refused:
        sys.exit(f"error: {refused}")


if __name__ == "__main__":
    main()
