# SPDX-License-Identifier: Apache-2.0
"""Makes wheels that stand in for what an NVIDIA base image has and PyPI has not.

    wheels.py BASE FOLDER

BASE has lines "distribution version module [requirement ...]". Each wheel has the
real one's name, version and requirements, and a module that can be imported and
computes nothing; what others want of it is in MODULE.py beside this file. For a
module "-" none is made: the distribution is to be had.
"""

import pathlib
import sys
import zipfile

MODULE = '''"""Stands in for {name} {version} of an NVIDIA base image. It computes nothing."""

__version__ = "{version}"
'''


def source(name, version, module):
    own = pathlib.Path(__file__).with_name(f"{module}.py")
    return MODULE.format(name=name, version=version) + (own.read_text() if own.exists() else "")


def wheel(folder, name, version, module, requirements):
    normal = name.replace("-", "_")
    info = f"{normal}-{version}.dist-info"
    files = {
        f"{module}/__init__.py": source(name, version, module),
        f"{info}/METADATA": "".join(
            [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", *(f"Requires-Dist: {r}\n" for r in requirements)]
        ),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: substitute-base\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    target = folder / f"{normal}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    print(target.name)


def main():
    base, folder = map(pathlib.Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    for line in base.read_text().splitlines():
        fields = line.split("#")[0].split()
        if fields and fields[2] != "-":
            wheel(folder, *fields[:3], fields[3:])


if __name__ == "__main__":
    main()
