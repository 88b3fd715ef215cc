#!/bin/sh
# Installs DeepSpeed into the virtual environment with its CPU ops compiled:
# compiled at first use, every rank of every run would do it, with a compiler.
# Wants the folder that base.py has written its record to.
set -eu

constraints=$1/constraints.txt
deepspeed=$(grep '^deepspeed==' "$constraints")
export DS_ACCELERATOR=cpu
built() {
  python3 - <<'PYTHON'
from deepspeed.git_version_info import installed_ops
assert all(installed_ops[op] for op in ("deepspeed_shm_comm", "cpu_adam", "fused_adam"))
PYTHON
}

if ! built 2>/dev/null; then
  # Debugging information, which Python's own flags ask for, makes each file take twice as long.
  cat > /tmp/c++ <<'SH'
#!/bin/sh
exec g++ "$@" -g0
SH
  chmod +x /tmp/c++
  export CXX=/tmp/c++ DS_ENABLE_NINJA=1 DS_BUILD_SHM_COMM=1 DS_BUILD_CPU_ADAM=1 DS_BUILD_FUSED_ADAM=1
  pip install --quiet --no-cache-dir -c "$constraints" setuptools wheel ninja py-cpuinfo
  pip install --no-cache-dir --no-build-isolation --force-reinstall --no-deps "$deepspeed"
  rm /tmp/c++
fi
# What it needs, and a look at whether it is as wanted.
pip install --quiet --no-cache-dir -c "$constraints" "$deepspeed"
built
