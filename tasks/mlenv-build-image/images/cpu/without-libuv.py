# SPDX-License-Identifier: Apache-2.0


def _tcp_store_without_libuv(init):
    def wrapper(self, *args, **kwargs):
        kwargs.setdefault("use_libuv", False)
        init(self, *args, **kwargs)
    return wrapper


if is_available():
    TCPStore.__init__ = _tcp_store_without_libuv(TCPStore.__init__)
