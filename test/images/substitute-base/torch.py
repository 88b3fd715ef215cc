# SPDX-License-Identifier: Apache-2.0

# The parts of torch that DeepSpeed's setup uses on a machine without a GPU.
import sys
import types


def lazy(name):
    """BuildExtension, of a setuptools that is imported only when it is asked for."""
    if name != "BuildExtension":
        raise AttributeError(name)
    from setuptools.command.build_ext import build_ext

    return type(name, (build_ext,), {"with_options": classmethod(lambda cls, **options: cls)})


utils = types.ModuleType("torch.utils")
utils.cpp_extension = types.ModuleType("torch.utils.cpp_extension")
utils.cpp_extension.CUDA_HOME = "/usr/local/cuda"
utils.cpp_extension.__getattr__ = lazy
sys.modules |= {module.__name__: module for module in (utils, utils.cpp_extension)}


class cuda:
    is_available = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 0)
    is_bf16_supported = staticmethod(lambda: False)
    nccl = types.SimpleNamespace(version=lambda: (2, 27, 7))


class version:
    cuda = "13.0"
    hip = None
