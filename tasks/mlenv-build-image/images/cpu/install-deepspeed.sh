#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs DeepSpeed into the virtual environment with compiled CPU ops. Every
# rank of every run would compile a missing op at first use, and need a compiler.
#
#   install-deepspeed.sh FOLDER OP...   OP is shm_comm, cpu_adam or fused_adam
#
# FOLDER has the record of base.py.
set -eu

lock=$1/lock.txt
shift
# DeepSpeed comes from source: building it needs the other packages.
grep -v '^deepspeed==' "$lock" > /tmp/wheels.txt
grep '^deepspeed==' "$lock" > /tmp/deepspeed.txt
export DS_ACCELERATOR=cpu
built() {
  python3 - "$@" <<'PYTHON'
import sys
from deepspeed.git_version_info import installed_ops
assert all(installed_ops["deepspeed_shm_comm" if op == "shm_comm" else op] for op in sys.argv[1:])
PYTHON
}

pip install --require-hashes --no-deps --quiet --no-cache-dir -r /tmp/wheels.txt
if ! built "$@" 2>/dev/null; then
  # -g0, because Python's own flags request debugging information, which doubles the compile time of each file.
  cat > /tmp/c++ <<'SH'
#!/bin/sh
exec g++ "$@" -g0
SH
  chmod +x /tmp/c++
  export CXX=/tmp/c++ DS_ENABLE_NINJA=1
  for op in "$@"; do
    export "DS_BUILD_$(echo "$op" | tr a-z A-Z)=1"
  done
  pip install --require-hashes --no-deps --no-cache-dir --no-build-isolation --force-reinstall -r /tmp/deepspeed.txt
  rm /tmp/c++
fi
# Replace a DeepSpeed of the base that has another version, and check that the ops are compiled.
pip install --require-hashes --no-deps --quiet --no-cache-dir --no-build-isolation -r /tmp/deepspeed.txt
built "$@"
