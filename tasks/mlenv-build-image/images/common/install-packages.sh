#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that the given files list, one per line with #
# comments. If all are installed, it does not even download the package lists.
set -eu

missing=
for package in $(sed 's/#.*//' "$@"); do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

echo "installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# dpkg's output matters only if it fails.
log=$(mktemp)
apt-get install -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 $missing >"$log" 2>&1 || { cat "$log"; exit 1; }
apt-get clean
rm -rf "$log" /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log
