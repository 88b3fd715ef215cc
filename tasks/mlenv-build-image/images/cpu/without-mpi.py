# SPDX-License-Identifier: Apache-2.0


def _mpi_below_mpirun(is_built):
    import os

    def is_mpi_available():
        started = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MV2_COMM_WORLD_SIZE")
        return is_built() and any(name in os.environ for name in started)
    return is_mpi_available


if is_available():
    is_mpi_available = _mpi_below_mpirun(is_mpi_available)
