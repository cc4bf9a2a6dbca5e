#!/usr/bin/env bash
# What `make test-vllm` runs in the environment that setup.sh has made.
#
#   test.sh FOLDER OUT                        all of it
#   test.sh FOLDER OUT engines [WORD...]      real engines, the suites whose names have a WORD
#   test.sh FOLDER OUT unit [ARGUMENT...]     vLLM's own unit tests with its methods replaced, arguments for pytest
#   test.sh FOLDER OUT sglang [ARGUMENT...]   SGLang's NIXL backend against ours, arguments for pytest
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=$(cd "$1" && pwd) out=$2
mkdir -p "$out"
out=$(cd "$out" && pwd)
shift 2

export DO_NOT_TRACK=1 HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false TRANSFORMERS_OFFLINE=1
export VLLM_NO_USAGE_STATS=1 VLLM_TARGET_DEVICE=cpu
export VLLM_CACHE_ROOT="$folder/cache" VLLM_CONFIG_ROOT="$folder/cache" # what vLLM learns of a model class, for next time
export PYTHONPATH="$here"

engines() { "$folder/bin/python" "$here/run.py" "$folder/models" "$out" "$@"; }

case ${1:-all} in
    all) engines ;;
    engines) "$@" ;;
    *) echo "usage: $0 FOLDER OUT [engines [WORD...]]" >&2; exit 2 ;;
esac
