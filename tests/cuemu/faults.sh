#!/bin/bash
# faults.sh - plants faults in copies of kernels, and fails where the check that is there for such
# a fault does not find it. Each is compiled for one dtype and linked with what is built of the rest.
#
#   tests/cuemu/faults.sh build/release
#
# The last line is "N passed, N failed, N skipped".
cd "$(dirname "$0")/../.." || exit 1
build=$PWD/$1/tests/cuemu
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
export LUA_PATH="lua/?.lua;lua/?/init.lua;?.lua;;" LUA_CPATH="$1/?.so;;"
# TSan does not see how the engine's own threads, which are not built with it, wait for each other.
export TSAN_OPTIONS=exitcode=66 ASAN_OPTIONS=detect_leaks=0 UL_THREADS=1
cores=$(nproc) planted=0

# The emulator itself, and what has a kernel's memory in its hands.
own=(cuemu mma backend)

compile() { # OUTPUT SOURCE SANITIZER DTYPE KERNELS
    c++ -x c++ -std=c++17 -fPIC -fvisibility=hidden -g1 -O1 -fno-strict-aliasing -w \
        -DUL_TYPE="$4" ${3:+-fsanitize=$3} -I"$5/cuda" -Itests/cuemu -c "$2" -o "$1"
}

# All objects of the emulated backend, but this one of this dtype, and with the file's own instead.
link() { # FOLDER NAME DTYPE SANITIZER
    local objects
    mapfile -t objects < <(grep -oE '[^ ]+\.o\b' \
        "$build/CMakeFiles/ulysses_cuda_emulated.dir/link.txt" | sed "s|^|$build/|" |
        grep -v -e "_$3.dir/$2.cc.o" -e /cuemu.cc.o \
            -e /mma.cc.o -e /backend.cc.o)
    c++ -shared ${4:+-fsanitize=$4} -o "$1/backend.so" "$1/$2.o" \
        "${own[@]/#/$folder/${4:-none}-}" "${objects[@]}" -ldl -lpthread
}

# The faults: a sed command on a file; the source and the dtype that are compiled with it; a
# sanitizer or none; the spec, and which of its tests; and what the output must say.
try() { # WHAT EDIT FILE NAME DTYPE SANITIZER SPEC FILTER FOUND
    local what=$1 edit=$2 file=$3 name=$4 dtype=$5 sanitizer=$6 spec=$7 filter=$8 found=$9
    local preload='' status at
    at=$(mktemp -d -p "$folder") && cp -r kernels "$at/kernels"
    sed -i "$edit" "$at/kernels/cuda/$file"
    if cmp -s "kernels/cuda/$file" "$at/kernels/cuda/$file" && [[ $edit ]]; then
        echo "$what: the edit of $file changes nothing"
        return 1
    fi
    compile "$at/$name.o" "$build/$name.cc" "$sanitizer" "$dtype" "$at/kernels" &&
        link "$at" "$name" "$dtype" "$sanitizer" || return 1
    [[ $sanitizer == thread ]] && preload=$(cc -print-file-name=libtsan.so)
    [[ $sanitizer == address ]] && preload=$(cc -print-file-name=libasan.so)
    UL_CUDA_BACKEND=$at/backend.so LD_PRELOAD=$preload UL_TEST_DTYPES=$dtype \
        timeout 200 luajit tests/busted.lua --filter="$filter" "$spec" >"$at/log" 2>&1
    status=$?
    # An offset that wraps may reach memory that is not there: that is found too.
    if { [[ $found ]] && ((status != 0)) &&
        { ((status == 139)) || grep -qaF "$found" "$at/log"; }; } ||
        { [[ ! $found ]] && ((status == 0)) && grep -qa '^[1-9].* passed' "$at/log"; }; then
        rm -rf "$at"
        return 0
    fi
    echo "$what: not as it must be (exit $status, looked for '$found')"
    tail -n 20 "$at/log"
    return 1
}

# As many at once as there are cores.
await_core() {
    while (($(jobs -rp | wc -l) >= cores)); do wait -n; done
}

plant() {
    await_core
    planted=$((planted + 1))
    { try "$@" && echo passed >>"$folder/passed"; } &
}

for sanitizer in '' thread address; do
    for name in "${own[@]}"; do
        await_core
        { compile "$folder/${sanitizer:-none}-$name" tests/cuemu/$name.cc "$sanitizer" f32 kernels ||
            touch "$folder/broken"; } &
    done
done
wait
[[ -e $folder/broken ]] && exit 1
ops=tests/cuda/ops_spec.lua
rows=tests/cuda/rows_spec.lua
race='WARNING: ThreadSanitizer: data race'
missing() { # N FILE NAME DTYPE OP [SPEC]: the Nth __syncthreads of a file
    plant "no __syncthreads $1 in $2, for $3" "$(awk -v n="$1" \
        '/^ +__syncthreads\(\);/ && ++k == n { print NR "d" }' "kernels/cuda/$2")" \
        "$2" "$3" "$4" thread "${6:-$ops}" " $5\$" "$race"
}
missing 1 block.h norm f32 layer_norm $rows
missing 2 block.h softmax f32 softmax $rows
missing 2 block.h norm bf16 rms_norm $rows
missing 1 norm.cu norm f32 layer_norm $rows
missing 2 block.h reduce f32 sum
missing 2 sort.cu sort f32 cumsum
missing 1 rows.h loss f32 linear_cross_entropy
missing 1 shape.cu shape f32 transpose
missing 2 matmul.cu matmul f32 matmul
missing 2 attention.cu attention f32 attention
missing 2 attention_backward.cu attention_backward f32 attention
missing 1 attention_flash.cu attention_flash bf16 attention_causal
missing 2 attention_flash.cu attention_flash bf16 attention_causal
missing 3 attention_flash.cu attention_flash bf16 'no keys' tests/cuda/flash_spec.lua
missing 2 attention_flash_backward.cu attention_flash_backward bf16 attention_causal
missing 4 attention_flash_backward.cu attention_flash_backward bf16 attention_causal
plant 'no fault, under TSan' '' block.h softmax f32 thread $rows ': softmax$' ''
plant 'no fault, under ASan' '' rows.h softmax f32 address $rows ': softmax$' ''
plant 'a read out of bounds' 's/threadIdx.x; i < (runs)/threadIdx.x; i <= (runs)/' rows.h \
    softmax f32 address $rows ': softmax$' use-after-poison
plant 'no fault, large offsets' '' cuda.h elementwise u8 '' tests/cuda/large_spec.lua 'in u8' ''
plant 'a 32-bit offset' 's/(int64_t)index \* l.stride\[o\]\[d\]/(int32_t)(index * l.stride[o][d])/' \
    cuda.h elementwise u8 '' tests/cuda/large_spec.lua 'in u8' large_spec.lua
plant 'a wrong gradient' 's/(dy \* silu_slope(v))/(dy * silu_slope(v) * 1.001f)/' unary.cu unary \
    f32 '' $ops 'for silu$' 'where the cpu gives'
wait
passed=$(wc -l 2>/dev/null <"$folder/passed")
echo "$passed passed, $((planted - passed)) failed, 0 skipped"
exit $((planted > passed))
