#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs VideoLLaMA2 into /opt/videollama2, for the Python in PATH.
#
#   install-videollama2.sh REPOSITORY COMMIT
#
# PyPI does not have it. pip does not install it: its metadata requires torch 2.2.0, its code does not.
set -eu

target=/opt/videollama2
git init --quiet "$target"
git -C "$target" fetch --quiet --depth 1 "$1" "$2"
git -C "$target" checkout --quiet FETCH_HEAD
rm -rf "$target/.git"
# Its training code imports this name from where an older transformers had it.
trainer=$target/videollama2/videollama2_trainer.py
moved='from transformers.pytorch_utils import ALL_LAYERNORM_LAYERS'
sed -i "/^    ALL_LAYERNORM_LAYERS,\$/d; s/^from transformers import Trainer\$/&\\n$moved/" "$trainer"
grep -qx "$moved" "$trainer" || {
  echo "error: changing $trainer: 'from transformers import Trainer' not found; commit $2 needs another change" >&2
  exit 1
}
echo "$target" > "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/videollama2.pth"
(cd / && python3 -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("videollama2"))') || {
  echo "error: commit $2 of $1 has no package videollama2" >&2
  exit 1
}
echo "installed VideoLLaMA2 $2"
