#!/usr/bin/env bash
# What a report on a machine with GPUs is made of: runs parts of it from a bundle (`cargo xtask bundle`), and
# leaves what each printed in a folder. A step that takes too long is ended, and the next one runs.
#
#   report.sh FOLDER PART...
#
# Parts: info kernels processes threads shared shared-processes faults stalls soak memcheck racecheck all-reduce others barrier
#        enqueue lanes bounds tune compare example moe moe-suite memcheck-moe racecheck-moe compare-moe
set -u
bundle=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
cd "$bundle" || exit 1

# Ranks that share a GPU need streams of their own. On hosts whose GPUs are shared, a multicast object can put
# them out of service.
export CUDA_DEVICE_MAX_CONNECTIONS=32
export SYMMEM_MULTICAST=0 NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
# Packed, where it has to travel.
[ -f kernels.bundle.gz ] && gunzip --keep --force kernels.bundle.gz
[ -f kernels.bundle ] && export SYMMEM_KERNEL_BUNDLE="$bundle/kernels.bundle"

# What the driver refuses when it is asked what it can do is no error.
sanitizer=(compute-sanitizer --error-exitcode 9 --report-api-errors no)

failed=0
step() { # name, seconds, command...
    local name=$1 limit=$2 start=$SECONDS rc
    shift 2
    echo "\$ $*" >"$out/$name.log"
    timeout --kill-after 5 "$limit" "$@" >>"$out/$name.log" 2>&1
    rc=$?
    [ $rc -eq 0 ] || failed=1
    printf '%-24s exit %3d %5d s  %s\n' "$name" $rc $((SECONDS - start)) "$(grep -E 'passed|ERROR SUMMARY' "$out/$name.log" | tail -1)" |
        tee -a "$out/steps.txt"
}

reduce() { # name, seconds, arguments...
    local name=$1 limit=$2
    shift 2
    step "$name" "$limit" ./symmem bench all-reduce --backend cuda --ranks 2 --dtype bf16 --graph --json "$out/$name.json" "$@"
}

moe() { # name, arguments...
    local name=moe-$1
    shift
    step "$name" 100 ./symmem bench moe --backend cuda --ranks 2 --threads --graph --batch 20x20 --hidden 7168 --experts 16 \
        --top-k 8 --tokens 1,8,32,128,1024,4096 --json "$out/$name.json" "$@"
}

for part; do
    case $part in
    info)
        step info 60 ./symmem info
        step info-json 60 ./symmem info --json
        ;;
    # Where the bundle came without: once, since every process would compile what it needs.
    kernels)
        arch=sm_$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
        [ "$arch" = sm_90 ] && arch=sm_90a
        step kernels 500 ./symmem kernels --arch "$arch" --out kernels.bundle
        export SYMMEM_KERNEL_BUNDLE="$bundle/kernels.bundle"
        ;;
    processes) step processes 280 ./conformance --backend cuda --ranks 2 ;;
    threads) step threads 280 ./conformance --backend cuda --ranks 2 --threads ;;
    shared) step shared 500 ./conformance --backend cuda --ranks 4,8 --threads --one-device ;;
    shared-processes) step shared-processes 200 ./conformance --backend cuda --ranks 4 --one-device collectives::sizes ;;
    # What docs/failure.md tells of GPUs: for cargo xtask failures --from failures.jsonl.
    faults)
        for tests in streams::faults streams::unordered failing disagreements::another_count one_launch_too_many; do
            step "faults-${tests##*::}" 120 ./conformance --backend cuda --ranks 2 --findings "$out/failures.jsonl" "$tests"
        done
        ;;
    # Kernels that stall are compiled where they run.
    stalls) step stalls 280 ./conformance --backend cuda --ranks 2 --threads stalls ;;
    soak) step soak 640 ./conformance --backend cuda --ranks 2 --threads --soak-seconds "${SOAK_SECONDS:-600}" soak:: ;;
    # On few and small sizes: every access is checked.
    memcheck)
        step memcheck 280 "${sanitizer[@]}" --tool memcheck \
            ./symmem bench all-reduce --backend cuda --ranks 2 --threads --dtype bf16 --min 2K --max 2M --factor 32 \
            --iterations 3 --batch 3 --no-limit
        for op in all-gather reduce-scatter broadcast reduce all-to-all; do
            step "memcheck-$op" 100 "${sanitizer[@]}" --tool memcheck \
                ./symmem bench "$op" --backend cuda --ranks 2 --threads --min 3K --max 100K --iterations 3 --batch 3 --no-limit
        done
        ;;
    racecheck)
        step racecheck 280 "${sanitizer[@]}" --tool racecheck \
            ./symmem bench all-reduce --backend cuda --ranks 2 --threads --dtype bf16 --min 2K --max 2M --factor 32 \
            --iterations 3 --batch 3 --no-limit
        ;;
    all-reduce)
        reduce all-reduce 280 --threads --batch 20x50 --min 2K --max 256M --factor 2
        reduce all-reduce-processes 280 --batch 20x20 --min 2K --max 256M --factor 4
        ;;
    others)
        for op in all-gather reduce-scatter broadcast reduce all-to-all all-to-all-nd reduce-scatter-offset put get; do
            step "$op" 100 ./symmem bench "$op" --backend cuda --ranks 2 --threads --graph --min 2K --max 16M --factor 8 \
                --json "$out/$op.json"
        done
        for type in f32 f16 f8e4m3 f64 i32; do
            step "all-reduce-$type" 60 ./symmem bench all-reduce --backend cuda --ranks 2 --threads --graph --dtype "$type" \
                --min 4K --max 16M --factor 64 --no-limit
        done
        ;;
    barrier) step barrier 60 ./symmem bench barrier --backend cuda --ranks 2 --threads --graph --batch 20x50 ;;
    enqueue)
        for ranks in "" --threads; do
            step "enqueue$ranks" 60 ./symmem bench enqueue --backend cuda --ranks 2 --dtype bf16 --min 2K --max 16M --factor 8192 \
                $ranks
        done
        ;;
    lanes) step lanes 60 ./symmem bench lanes --backend cuda --ranks 2 --threads --dtype bf16 --min 2K --max 16M --factor 8 --no-limit ;;
    bounds)
        step bounds 400 ./symmem bench bounds --backend cuda --ranks 2 --threads --dtype bf16 --min 2K --max 64M --factor 4 \
            --json "$out/bounds.json"
        ;;
    tune) step tune 280 ./symmem tune --backend cuda --ranks 2 --threads --graph --output "$out/tune.toml" ;;
    compare) step compare 580 python3 compare/compare.py --symmem ./symmem --peers torch,nccl ;;
    example) step example 120 ./fused-rmsnorm ;;
    moe-suite)
        step moe-threads 120 ./conformance --backend cuda --ranks 2 --threads moe::
        step moe-processes 120 ./conformance --backend cuda --ranks 2 moe::
        ;;
    moe)
        for layout in vdev compact padded rank-major; do
            moe "$layout" --layout "$layout"
            [ "$layout" = vdev ] || moe "$layout-f8" --layout "$layout" --quantised
        done
        ;;
    # Of few experts and tokens: every access is checked.
    memcheck-moe | racecheck-moe)
        for layout in vdev compact padded rank-major; do
            step "$part-$layout" 100 "${sanitizer[@]}" --tool "${part%-moe}" \
                ./symmem bench moe --backend cuda --ranks 2 --threads --layout "$layout" --tokens 1,33 --hidden 1000 --experts 6 \
                --top-k 3 --iterations 3 --batch 3
        done
        ;;
    compare-moe)
        for layout in vdev compact; do
            step "compare-moe-$layout" 280 python3 compare/compare.py --symmem ./symmem --peers torch,nccl --ops moe \
                --layout "$layout" --tokens 1,8,32,128,1024,4096 --hidden 7168 --experts 16 --top-k 8 --runs 5 \
                --json "$out/compare-moe-$layout.json"
        done
        ;;
    *)
        echo "no part $part" >&2
        exit 2
        ;;
    esac
done
exit $failed
