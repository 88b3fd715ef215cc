"""Makes LLaMAFactory, already installed without its requirements, work without torchaudio.

The base has no torchaudio, the one on PyPI is built for another torch and CUDA
and would bring them, and LLaMAFactory imports it at its start though it uses it
for audio input only. Where the base has it, nothing is changed.
"""

import importlib.util
import pathlib
import sys
from importlib import metadata


def replace(path, old, new):
    text = path.read_text()
    if old not in text:
        sys.exit(f"error: changing {path}: {old!r} is not in it: another version of LLaMAFactory wants another change")
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
