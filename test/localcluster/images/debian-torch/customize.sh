# SPDX-License-Identifier: Apache-2.0
# Debian's torch is built without libuv and torch asks for it by default:
# torchrun and every rank below it would fail. USE_LIBUV=0 is not read everywhere.
cat >> /usr/lib/python3/dist-packages/torch/distributed/__init__.py <<'PYTHON'


def _tcp_store_without_libuv(init):
    def wrapper(self, *args, **kwargs):
        kwargs.setdefault("use_libuv", False)
        init(self, *args, **kwargs)
    return wrapper


if is_available():
    TCPStore.__init__ = _tcp_store_without_libuv(TCPStore.__init__)
PYTHON
