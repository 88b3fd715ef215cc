"""Keeps what the base image has: its torch, its numpy, what they were built with.

    base.py record CONTEXT FOLDER   before anything is installed
    base.py verify CONTEXT FOLDER   when everything is

CONTEXT is the flavour's folder, FOLDER where the record is kept. record writes
base.json (what the base has), base-constraints.txt (the same, for pip) and
constraints.txt (the same, what pip could not replace, and the rest of
CONTEXT/lock.txt). verify imports what CONTEXT/base-packages names, compares it
with the record, and looks for requirements of what the flavour added that are
not met.
"""

import fnmatch
import hashlib
import importlib
import json
import pathlib
import re
import sys
from importlib import metadata

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.specifiers import SpecifierSet


class Refused(Exception):
    """What the base or the finished image has is not what this flavour is made for."""


def name_of(distribution):
    """The name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def rows(path):
    """The lines of a file without comments, each split at white space."""
    for line in path.read_text().splitlines():
        fields = line.split("#")[0].split()
        if fields:
            yield fields


def installed():
    """Every distribution that Python finds first, by name."""
    found = {}
    for distribution in metadata.distributions():
        found.setdefault(name_of(distribution.metadata["Name"]), distribution)
    return found


def state(distribution, module):
    """What must not change: versions, place, and the list of the installed files."""
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
    """What CONTEXT/base-packages names and Python has: name, state, wanted version."""
    have = installed()
    for pattern, module, *wanted in rows(context / "base-packages"):
        matches = fnmatch.filter(have, pattern)
        if not matches and module != "-":
            raise Refused(f"looking at the base image: it has no {pattern}: {pattern}{' '.join(wanted)} wanted")
        for name in matches:
            found = state(have[name], module)
            check(name, found["version"], *wanted)
            yield name, found


def check(name, version, wanted=""):
    """Refuses a version that the flavour is not made for."""
    if not SpecifierSet(wanted).contains(version, prereleases=True):
        raise Refused(f"looking at {name}: version {version} found: {wanted} wanted")


def not_removable():
    """What pip cannot replace, because the system's packages brought it and no list of its files."""
    if sys.prefix != sys.base_prefix:
        return {}  # pip shadows it in a virtual environment
    return {n: d.version for n, d in installed().items() if d.read_text("RECORD") is None}


def pins(versions):
    return "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


def record(context, folder):
    base = dict(base_packages(context))
    own = {name: found["version"] for name, found in base.items()}
    stays = not_removable() | own
    rest = [pin for (pin,) in rows(context / "lock.txt") if name_of(pin.split("==")[0]) not in stays]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "base.json").write_text(json.dumps(base, indent=2) + "\n")
    (folder / "base-constraints.txt").write_text(pins(own))
    (folder / "constraints.txt").write_text(pins(stays) + "".join(f"{pin}\n" for pin in rest))
    print("the base has", ", ".join(f"{name} {found['version']}" for name, found in base.items()))


def verify(context, folder):
    before = json.loads((folder / "base.json").read_text())
    now = dict(base_packages(context))
    for name in before:  # what was added since is held by the lock
        if now.get(name) != before[name]:
            raise Refused(f"comparing {name} with the base image's: {now.get(name)} found: {before[name]} wanted")
    added = [name_of(pin.split("==")[0]) for (pin,) in rows(context / "lock.txt")]
    have = installed()
    broken = [problem for name in [*before, *added] for problem in unmet(name, have)]
    if broken:
        raise Refused("checking requirements: " + "; ".join(broken))
    print("unchanged:", ", ".join(f"{name} {found['version']}" for name, found in before.items()))


def unmet(name, have):
    """Requirements of a distribution that are not met among those installed."""
    if name not in have:
        return  # of a set that was left out
    for text in have[name].requires or []:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        found = have.get(name_of(requirement.name))
        if found is None or not requirement.specifier.contains(found.version, prereleases=True):
            yield f"{name} {have[name].version} wants {requirement}: {found.version if found else 'nothing'} found"


def main():
    verb, context, folder = sys.argv[1:]
    try:
        {"record": record, "verify": verify}[verb](pathlib.Path(context), pathlib.Path(folder))
    except Refused as refused:
        sys.exit(f"error: {refused}")


if __name__ == "__main__":
    main()
