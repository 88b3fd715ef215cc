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
# what pip installs goes into an environment that sees Debian's packages. Both
# Pythons see both, so that torchrun and further environments have everything.
[ -x /opt/venv/bin/python3 ] || /usr/bin/python3 -m venv --system-site-packages /opt/venv
purelib=$(/opt/venv/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$(/usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
echo "$purelib" > "$(/usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/opt-venv.pth"
