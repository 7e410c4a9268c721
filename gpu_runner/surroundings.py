"""The environment and the private folders that a command gets: nothing of the runner's user or of an earlier run.

Inherited are only the variables below, which say where programs, libraries and devices are. Then come the private
folders, the suite's own variables, the arm's, and the execution's; None takes a variable away.

Python's byte code stays where Python puts it: inside the tree, which is restored, and beside installed packages, where
it is checked against its source. A private PYTHONPYCACHEPREFIX would compile every installed module in each execution.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

INHERITED = frozenset(
    """PATH LANG LANGUAGE TZ USER LOGNAME SHELL LD_LIBRARY_PATH LIBRARY_PATH CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH
    PKG_CONFIG_PATH CMAKE_PREFIX_PATH CMAKE_GENERATOR CC CXX CUDACXX CUDA_HOME CUDA_PATH CUDA_VISIBLE_DEVICES
    CUDA_DEVICE_ORDER NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES ROCM_PATH HIP_VISIBLE_DEVICES
    ROCR_VISIBLE_DEVICES OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS HF_HOME HF_ENDPOINT HF_HUB_OFFLINE
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_CERT UV_INDEX_URL
    HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy""".split()  # noqa: SIM905
)
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INHERITED_PREFIXES = ("LC_",)

# Values that are recorded with every execution: they say how a run was set up and hold no secret.
RECORDED = frozenset(
    """PATH LANG LANGUAGE TZ LD_LIBRARY_PATH LIBRARY_PATH CPATH CMAKE_PREFIX_PATH CC CXX CUDACXX CUDA_HOME CUDA_PATH
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER NVIDIA_VISIBLE_DEVICES ROCM_PATH HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES
    OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS HF_HUB_OFFLINE""".split()  # noqa: SIM905
)

# Cache folders that a warm-up fills and that its snapshot restores. TMPDIR and the events file are always fresh.
CACHE_VARIABLES = {
    "HOME": "home",
    "XDG_CACHE_HOME": "cache",
    "XDG_CONFIG_HOME": "config",
    "XDG_DATA_HOME": "data",
    "XDG_STATE_HOME": "state",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "CUDA_CACHE_PATH": "cuda",
    "NUMBA_CACHE_DIR": "numba",
}
FRESH_VARIABLES = {"TMPDIR": "tmp", "XDG_RUNTIME_DIR": "runtime"}


def private_folders(private: Path) -> list[Path]:
    """Return the folders that must exist below `private` before a command starts; `own` is the runner's."""
    return [private / name for name in ("own", *CACHE_VARIABLES.values(), *FRESH_VARIABLES.values())]


def compose(private: Path, layers: Iterable[Mapping[str, str | None]]) -> dict[str, str]:
    """Return the whole environment of a command: inherited, private folders, then the layers in order."""
    environment: dict[str, str | None] = {
        name: value for name, value in os.environ.items() if name in INHERITED or name.startswith(INHERITED_PREFIXES)
    }
    environment["PATH"] = search_path(environment.get("PATH"))
    for name, folder in (CACHE_VARIABLES | FRESH_VARIABLES).items():
        environment[name] = str(private / folder)
    for layer in layers:
        environment |= layer
    return {name: value for name, value in environment.items() if value is not None}


def search_path(inherited: str | None) -> str:
    """Return PATH with the folder of the running interpreter at its end, where a virtual environment has its tools."""
    parts = (inherited or DEFAULT_PATH).split(os.pathsep)
    own = str(Path(sys.executable).absolute().parent)
    return os.pathsep.join(parts if own in parts else [*parts, own])
