# SPDX-License-Identifier: Apache-2.0
"""Tests of what the flavour cpu adds to Debian's torch."""

import os
import pathlib
import types
import unittest
from unittest import mock

CPU = pathlib.Path(__file__).parents[2] / "tasks/mlenv-build-image/images/cpu"


class TCPStore:
    def __init__(self, host, use_libuv=True):
        self.use_libuv = use_libuv


def distributed():
    """Returns a stand-in for Debian's torch.distributed, which is built with MPI and without libuv, with the additions."""
    module = types.ModuleType("torch.distributed")
    store = type("TCPStore", (TCPStore,), {})
    module.__dict__.update(is_available=lambda: True, is_mpi_available=lambda: True, TCPStore=store)
    for name in ("without-libuv.py", "without-mpi.py"):
        exec((CPU / name).read_text(), module.__dict__)
    return module


class Torch(unittest.TestCase):
    def test_store_without_libuv(self):
        self.assertFalse(distributed().TCPStore("node-0").use_libuv)

    def test_mpi_is_for_mpirun(self):
        """Otherwise accelerate chooses MPI in a rank that a launcher of ours or torchrun has started, and its world size is 1."""
        ranks = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node-0", "MASTER_PORT": "29500"}
        for variables, want in (({}, False), (ranks, False), ({**ranks, "OMPI_COMM_WORLD_SIZE": "2"}, True), ({"PMI_SIZE": "2"}, True)):
            with self.subTest(variables), mock.patch.dict(os.environ, variables, clear=True):
                self.assertEqual(distributed().is_mpi_available(), want)

    def test_installed_once(self):
        """A base image may have the additions already."""
        install = (CPU / "install-system.sh").read_text()
        for name in ("without-libuv.py", "without-mpi.py"):
            function = (CPU / name).read_text().split("def ", 1)[1].split("(")[0]
            self.assertIn(f'grep -q {function} "$distributed" || cat "$context/{name}" >> "$distributed"', install)


if __name__ == "__main__":
    unittest.main()
