#!/bin/sh
# Installs DeepSpeed into the virtual environment with compiled CPU ops. Every
# rank of every run would compile a missing op at first use, and need a compiler.
#
#   install-deepspeed.sh FOLDER OP...   OP is shm_comm, cpu_adam or fused_adam
#
# FOLDER has the record of base.py.
set -eu

constraints=$1/constraints.txt
shift
deepspeed=$(grep '^deepspeed==' "$constraints")
export DS_ACCELERATOR=cpu
built() {
  python3 - "$@" <<'PYTHON'
import sys
from deepspeed.git_version_info import installed_ops
assert all(installed_ops["deepspeed_shm_comm" if op == "shm_comm" else op] for op in sys.argv[1:])
PYTHON
}

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
  pip install --quiet --no-cache-dir -c "$constraints" setuptools wheel ninja py-cpuinfo
  pip install --no-cache-dir --no-build-isolation --force-reinstall --no-deps "$deepspeed"
  rm /tmp/c++
fi
# Install DeepSpeed's requirements, and check that its ops are compiled.
pip install --quiet --no-cache-dir -c "$constraints" "$deepspeed"
built "$@"
