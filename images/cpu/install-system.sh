#!/bin/sh
# Makes a system that trains on CPUs out of a Debian one.
set -eu

context=$(dirname "$0")
sh "$context/install-packages.sh" "$context/packages"

# Debian's torch is built without libuv and torch asks for it by default:
# torchrun and every rank below it would fail. USE_LIBUV=0 is not read everywhere.
store=/usr/lib/python3/dist-packages/torch/distributed/__init__.py
grep -q _tcp_store_without_libuv "$store" || cat "$context/without-libuv.py" >> "$store"

# Debian's Python is managed by apt and its packages cannot be replaced by pip:
# what pip installs goes into an environment that sees Debian's packages. Debian's
# Python sees the environment's too, so that torchrun and further environments do.
[ -x /opt/venv/bin/python3 ] || /usr/bin/python3 -m venv --system-site-packages /opt/venv
chmod -R g=u /opt/venv
packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
mkdir -p "$(packages /usr/bin/python3)"
echo "import site; site.addsitedir('$(packages /opt/venv/bin/python3)')" > "$(packages /usr/bin/python3)/opt-venv.pth"
