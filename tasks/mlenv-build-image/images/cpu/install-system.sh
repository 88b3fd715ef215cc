#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Turns a Debian system into one that trains on CPUs.
set -eu

context=$(dirname "$0")
sh "$context/install-packages.sh" "$context/packages"

# Debian's torch is built without libuv, but torch uses libuv by default: torchrun
# and every rank below it would fail. Not all of torch reads USE_LIBUV=0.
distributed=/usr/lib/python3/dist-packages/torch/distributed/__init__.py
grep -q _tcp_store_without_libuv "$distributed" || cat "$context/without-libuv.py" >> "$distributed"

# Debian's torch is built with MPI. accelerate, and so transformers' Trainer, prefers MPI
# to gloo if torch has it, and no variable prevents that. Without mpirun each rank would
# be alone. The backend "mpi" by name still works.
grep -q _mpi_below_mpirun "$distributed" || cat "$context/without-mpi.py" >> "$distributed"

# apt manages Debian's Python, so pip cannot replace its packages: pip installs into
# a virtual environment that sees Debian's packages. Debian's Python also sees the
# packages of that environment, so that torchrun and other environments see them.
[ -x /opt/venv/bin/python3 ] || /usr/bin/python3 -m venv --system-site-packages /opt/venv
chmod -R g=u /opt/venv
packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
mkdir -p "$(packages /usr/bin/python3)"
echo "import site; site.addsitedir('$(packages /opt/venv/bin/python3)')" > "$(packages /usr/bin/python3)/opt-venv.pth"
