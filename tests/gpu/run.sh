#!/bin/bash
# run.sh - everything that only a GPU can show, in one command and at most 8 minutes.
#
#   tests/gpu/run.sh [report]      the report's file; build/gpu-report.md unless given
#
# Builds for this GPU, runs the kernel suite plain and under compute-sanitizer, compares cuDNN, our
# attention and f64, trains with 2 and 4 ranks that share the GPU, and times ops against their
# floors and a training step against PyTorch where there is one. A part that fails, is refused or
# runs out of time is reported, and the next one follows. Exit status: whether all tests passed.
#
# To see that the script itself runs, on a machine without a GPU: UL_CUDA_BACKEND names the emulated
# backend, which is given small models and sizes, and UL_CUDA_LIB_PATH the folder of its stand-in
# for cuDNN. On a machine without network, tests/gpu/pack.sh first gathers what is missing there,
# elsewhere. Where a machine is lent for one command that returns a folder, with a limit of its own
# of 10 minutes:
#
#   tests/gpu/pack.sh                                                  (here; 64 MiB with the source)
#   tests/gpu/run.sh "$OUT/gpu-report.md"; cp -r build/gpu-logs "$OUT"                        (there)
cd "$(dirname "$0")/../.." || exit 1
report=${1:-build/gpu-report.md}
logs=build/gpu-logs
mkdir -p "$logs" "$(dirname "$report")"
tools=$PWD/build/gpu-tools
started=$SECONDS
budget=470 # seconds for all
bad=0

say() { echo "$@" | tee -a "$report"; }

# Luajit, busted, Open MPI and the libraries to build with, where pack.sh has gathered them.
use_tools() {
    local lib=$tools/usr/lib/x86_64-linux-gnu
    export PATH=$PATH:$tools/usr/bin
    export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$lib:$tools/lib/x86_64-linux-gnu:$lib/openmpi/lib
    export PKG_CONFIG_SYSROOT_DIR=$tools PKG_CONFIG_LIBDIR=$lib/pkgconfig:$tools/usr/share/pkgconfig
    export LUA_PATH="$tools/usr/share/lua/5.1/?.lua;$tools/usr/share/lua/5.1/?/init.lua;;"
    export LUA_CPATH="$lib/lua/5.1/?.so;;"
    export OPAL_PREFIX=$tools/usr OPAL_LIBDIR=$lib
    export OMPI_MCA_mca_base_component_path=$lib/openmpi/lib/openmpi3
    export OPAL_DATADIR=$tools/usr/share OPAL_PKGDATADIR=$tools/usr/share/openmpi
    [[ -e $tools/usr/bin/luajit ]] || ln -sf "$(cd "$tools/usr/bin" && ls luajit* | head -n 1)" \
        "$tools/usr/bin/luajit"
    [[ -e $tools/usr/bin/mpirun ]] || ln -sf mpirun.openmpi "$tools/usr/bin/mpirun"
    [[ -e $tools/usr/bin/pkg-config ]] || ln -sf pkgconf "$tools/usr/bin/pkg-config"
}

# part TITLE SECONDS COMMAND...: runs it, its end goes to the report. Whatever is left of all the
# time bounds it too.
part() {
    local title=$1 limit=$2 left=$((budget - SECONDS + started)) status start=$SECONDS
    local log="$logs/${title//[^a-zA-Z0-9]/_}.log"
    shift 2
    ((left < limit)) && limit=$left
    say "" && say "## $title"
    if ((limit < 5)); then
        say "not run: the time is used up"
        return 1
    fi
    timeout --kill-after=5 "$limit" "$@" >"$log" 2>&1
    status=$?
    say '```' && tail -n "${lines:-40}" "$log" | tee -a "$report" && say '```'
    case $status in
    0) say "$((SECONDS - start)) s" ;;
    124 | 137) say "stopped after $limit s" ;;
    *) say "exit status $status after $((SECONDS - start)) s" ;;
    esac
    return $status
}

# A part that is a test: its failure is the script's.
test_part() { part "$@" || bad=1; }

machine() {
    date -u +%Y-%m-%d
    nproc && grep -m 1 'model name' /proc/cpuinfo
    "${CUDACXX:-nvcc}" --version | tail -n 2
    git log -1 --format=%h 2>/dev/null
    cc --version | head -n 1
    cmake --version | head -n 1
    python3 -c 'import torch, transformers
print("torch", torch.__version__, "transformers", transformers.__version__)' 2>/dev/null ||
        echo 'no python3 with torch and transformers'
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem \
        --format=csv,noheader || [[ $UL_CUDA_BACKEND ]]
}

build() {
    local capability
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
    cmake --preset cuda -DUL_CUDA_ARCHITECTURES="${capability:-90}-real" &&
        cmake --build --preset cuda -j "$(nproc)" --target core ulysses-lua matmul_test \
            $([[ $UL_CUDA_BACKEND ]] || echo ulysses_cuda)
}

lua() { env "LUA_PATH=$lua_path" "LUA_CPATH=$lua_cpath" luajit "$@"; }

suite() { lua tests/busted.lua tests/cuda/*_spec.lua; }

# Every layout, type, batch and epilogue, by the real cuBLASLt.
products() { build/cuda/matmul_test "${UL_CUDA_BACKEND:-build/cuda/ulysses/libulysses_cuda.so}"; }

attention() {
    local status=0 large=large
    [[ $UL_CUDA_BACKEND ]] && large=
    lua tests/cuda/cudnn_attention.lua cudnn any_order $large || status=$?
    lua tests/cuda/cudnn_attention.lua native in_order $large || status=$?
    return $status
}

# What shares memory between threads: the tool is 10 to 100 times slower.
sanitized() {
    env "LUA_PATH=$lua_path" "LUA_CPATH=$lua_cpath" \
        compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 5 luajit tests/busted.lua \
        --filter=attention --filter=norm --filter=sum --filter=matmul --filter=entropy \
        --filter=sort --filter=embedding tests/cuda/ops_spec.lua
}

# The losses of 20 steps over so many ranks of this GPU, beside those of one.
ranks() {
    local folder small=
    [[ $UL_CUDA_BACKEND ]] && small='model.dim=64 model.n_layers=2 seq_len=32 sample=9'
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    trap exit TERM # and leaves nothing behind
    export CUDA_VISIBLE_DEVICES=0 CUEMU_DEVICES=1 # one, where there are more
    for n in 1 "$1"; do
        "$program" --device cuda --ranks "$n" recipes/llama3.lua sp="$n" steps=20 dtype=f32 $small \
            out="$folder/$n" || return
    done
    lua tests/gpu/losses.lua "$folder/1" "$folder/$1"
}

steps() {
    local status=0
    "$program" --device cuda tests/gpu/step.lua ${UL_CUDA_BACKEND:+64 2} || status=$?
    if python3 -c 'import torch, transformers' 2>/dev/null; then
        python3 tests/gpu/step.py || status=$?
    else
        echo 'no comparison: python3 with torch and transformers is not here'
    fi
    return $status
}

: >"$report"
trap 'say "" && say "stopped from outside after $((SECONDS - started)) s"; exit 1' TERM INT
say '# What a GPU showed'
[[ -d $tools ]] && use_tools
program=build/cuda/ulysses-lua
lua_path="lua/?.lua;lua/?/init.lua;?.lua;$LUA_PATH;;"
lua_cpath="build/cuda/?.so;$LUA_CPATH;;"
export program lua_path lua_cpath
export -f machine build lua suite products attention sanitized ranks steps
part 'Machine' 30 bash -c machine
if lines=15 part 'Build' 200 bash -c build; then
    test_part 'Kernel suite' 90 bash -c suite
    test_part 'Products: cuBLASLt' 60 bash -c products
    test_part 'Attention: cuDNN, ours, f64' 60 bash -c attention
    test_part 'Two ranks on one GPU' 60 bash -c 'ranks 2'
    test_part 'Four ranks on one GPU' 60 bash -c 'ranks 4'
    lines=100 part 'Ops against their floors' 60 "$program" --device cuda tests/bench/run.lua
    part 'A training step against PyTorch' 100 bash -c steps
    part 'compute-sanitizer memcheck' 70 bash -c 'sanitized memcheck'
    part 'compute-sanitizer racecheck' 70 bash -c 'sanitized racecheck'
else
    bad=1
fi
say "" && say "$((SECONDS - started)) s in all"
exit $bad
