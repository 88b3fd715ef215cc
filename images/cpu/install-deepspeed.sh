#!/bin/sh
# Installs DeepSpeed into the virtual environment with compiled CPU ops. Otherwise
# every rank of every run would compile them at first use, and need a compiler.
# Needs the folder of base.py's record.
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
  # -g0, because Python's own flags request debugging information, which doubles the compile time of each file.
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
# Install DeepSpeed's requirements, and check that its ops are compiled.
pip install --quiet --no-cache-dir -c "$constraints" "$deepspeed"
built
