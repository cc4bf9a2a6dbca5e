#!/usr/bin/env bash
# What `make test-vllm` runs in the environment that setup.sh has made.
#
#   test.sh FOLDER OUT                        all of it
#   test.sh FOLDER OUT engines [WORD...]      real engines, the suites whose names have a WORD
#   test.sh FOLDER OUT unit [ARGUMENT...]     vLLM's own unit tests with its methods replaced, arguments for pytest
#   test.sh FOLDER OUT sglang [ARGUMENT...]   SGLang's NIXL backend against ours, arguments for pytest
#   test.sh FOLDER OUT new_peer [KIND...]     how long vLLM's worker takes over a peer's message, and ours; not in all of it
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

# Without the tests that need a GPU or a model hub: they start whole engines. What each method gives is compared with
# what ours gives, call by call.
unit() (
    local tests=tests/v1/kv_connector/unit
    cp "$here/unit/pytest.ini" "$folder/unit/"
    [ -d "$folder/unit/hub" ] || "$folder/bin/python" "$here/unit/hub.py" "$folder/unit"
    cd "$folder/unit"
    HF_HOME="$folder/unit" PYTHONPATH="$here/unit:$folder/unit" "$folder/bin/python" -m pytest \
        -p no:cacheprovider -p swapped --timeout 600 --tb short -q -rfE --disable-warnings "$@" \
        $tests/test_{tp_mapping,nixl_desc_geometry,nixl_connector_hma,nixl_push_connector,nixl_connector}.py \
        $tests/test_{transfer_topology_sharded,bidirectional_kv_transfer,handshake_pp_aggregation,hma_auto_config}.py \
        $tests/test_{nixl_heartbeat,nixl_simple_cpu_offload,remote_prefill_lifecycle,remote_decode_lifecycle}.py \
        --deselect $tests/test_nixl_connector_hma.py::test_fewer_blocks_with_hma \
        --deselect $tests/test_nixl_connector.py::test_abort_timeout_on_prefiller
)

# SGLang's functions on pools of tiny tensors; a configuration of its own, for none of ours is wanted.
sglang() (
    cd "$here/../sglang"
    "$folder/bin/python" -m pytest -c /dev/null --rootdir . -p no:cacheprovider --tb short -q "$@" test_backend.py
)

new_peer() (
    cd "$folder/unit"
    PYTHONPATH="$folder/unit" "$folder/bin/python" "$here/new_peer.py" "$here/../../bench" ../models/attention "$@"
)

case ${1:-all} in
    all) sglang; unit; engines ;;
    engines | unit | sglang | new_peer) "$@" ;;
    *)
        echo "usage: $0 FOLDER OUT [engines|new_peer [WORD...] | unit|sglang [ARGUMENT...]]" >&2
        exit 2
        ;;
esac
