# SPDX-License-Identifier: Apache-2.0
"""Makes LLaMAFactory, already installed without its requirements, work without torchaudio.

The base has no torchaudio. The one on PyPI is built for another torch and CUDA
and would install them. LLaMAFactory imports torchaudio at its start, although
only audio input needs it. If the base has torchaudio, this script changes
nothing.
"""

import importlib.util
import pathlib
import sys
from importlib import metadata


def replace(path, old, new):
    text = path.read_text()
    if old not in text:
        sys.exit(f"error: changing {path}: {old!r} not found; this version of LLaMAFactory needs another change")
    path.write_text(text.replace(old, new))


def main():
    if importlib.util.find_spec("torchaudio"):
        return
    distribution = metadata.distribution("llamafactory")
    plugin = pathlib.Path(distribution.locate_file("llamafactory/data/mm_plugin.py"))
    replace(plugin, "\nimport torchaudio\n", """
try:
    import torchaudio
except ImportError:
    torchaudio = None  # needed for audio input only
""")
    (requirements,) = [f for f in distribution.files if f.name == "METADATA"]
    replace(pathlib.Path(requirements.locate()), "Requires-Dist: torchaudio>=2.4.0\n", "")


if __name__ == "__main__":
    main()
