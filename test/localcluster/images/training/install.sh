# SPDX-License-Identifier: Apache-2.0
# Debian's Python is managed by apt and its packages cannot be replaced by pip:
# DeepSpeed goes into an environment that sees Debian's torch.
python3 -m venv --system-site-packages /opt/venv
/opt/venv/bin/pip install --no-cache-dir -c /image/constraints.txt setuptools wheel ninja
DS_ACCELERATOR=cpu DS_BUILD_SHM_COMM=1 /opt/venv/bin/pip install --no-cache-dir --no-build-isolation \
  -c /image/constraints.txt deepspeed==0.17.6
DS_ACCELERATOR=cpu HOME=/tmp /opt/venv/bin/python -c '
from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder
assert ShareMemCommBuilder().load().__file__.startswith("/opt/venv/"), "the op was not built into the image"
'
