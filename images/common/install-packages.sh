#!/bin/sh
# Installs the Debian packages that the given files list, one a line with #
# comments. What is there already costs nothing, not even a list of packages.
set -eu

missing=
for package in $(sed 's/#.*//' "$@"); do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

echo "installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# dpkg's output is of use only when it fails.
log=$(mktemp)
apt-get install -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 $missing >"$log" 2>&1 || { cat "$log"; exit 1; }
apt-get clean
rm -rf "$log" /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log
