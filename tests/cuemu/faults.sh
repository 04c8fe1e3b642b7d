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
passed=0 failed=0
export LUA_PATH="lua/?.lua;lua/?/init.lua;?.lua;;" LUA_CPATH="$1/?.so;;"
# TSan does not see how the engine's own threads, which are not built with it, wait for each other.
export TSAN_OPTIONS=exitcode=66 ASAN_OPTIONS=detect_leaks=0 UL_THREADS=1

compile() { # OUTPUT SOURCE SANITIZER DTYPE
    c++ -x c++ -std=c++17 -fPIC -fvisibility=hidden -g1 -O1 -fno-strict-aliasing -w \
        -DUL_TYPE="$4" ${3:+-fsanitize=$3} -I"$folder/kernels/cuda" -Itests/cuemu -c "$2" -o "$1"
}

# All objects of the emulated backend, but this one of this dtype, and with the file's own instead.
link() { # NAME DTYPE SANITIZER
    local objects
    mapfile -t objects < <(grep -oE '[^ ]+\.o\b' \
        "$build/CMakeFiles/ulysses_cuda_emulated.dir/link.txt" | sed "s|^|$build/|" |
        grep -v -e "_$2.dir/$1.cc.o" -e /cuemu.cc.o -e /backend.cc.o)
    c++ -shared ${3:+-fsanitize=$3} -o "$folder/backend.so" "$folder/$1.o" "$folder/cuemu.o" \
        "$folder/backend.o" "${objects[@]}" -ldl -lpthread
}

# The faults: a sed command on a file; the source and the dtype that are compiled with it; a
# sanitizer or none; the spec, and which of its tests; and what the output must say.
plant() { # WHAT EDIT FILE NAME DTYPE SANITIZER SPEC FILTER FOUND
    local what=$1 edit=$2 file=$3 name=$4 dtype=$5 sanitizer=$6 spec=$7 filter=$8 found=$9
    local preload='' status
    rm -rf "$folder/kernels"
    cp -r kernels "$folder/kernels"
    sed -i "$edit" "$folder/kernels/cuda/$file"
    if cmp -s "kernels/cuda/$file" "$folder/kernels/cuda/$file" && [[ $edit ]]; then
        echo "$what: the edit of $file changes nothing"
        failed=$((failed + 1))
        return
    fi
    compile "$folder/$name.o" "$build/$name.cc" "$sanitizer" "$dtype" &&
        compile "$folder/cuemu.o" tests/cuemu/cuemu.cc "$sanitizer" "$dtype" &&
        compile "$folder/backend.o" tests/cuemu/backend.cc "$sanitizer" "$dtype" &&
        link "$name" "$dtype" "$sanitizer" || { failed=$((failed + 1)) && return; }
    [[ $sanitizer == thread ]] && preload=$(cc -print-file-name=libtsan.so)
    [[ $sanitizer == address ]] && preload=$(cc -print-file-name=libasan.so)
    UL_CUDA_BACKEND=$folder/backend.so LD_PRELOAD=$preload \
        timeout 200 luajit tests/busted.lua --filter="$filter" "$spec" >"$folder/log" 2>&1
    status=$?
    # An offset that wraps may reach memory that is not there: that is found too.
    if { [[ $found ]] && ((status != 0)) &&
        { ((status == 139)) || grep -qaF "$found" "$folder/log"; }; } ||
        { [[ ! $found ]] && ((status == 0)); }; then
        passed=$((passed + 1))
    else
        echo "$what: not as it must be (exit $status, looked for '$found')"
        tail -n 20 "$folder/log"
        failed=$((failed + 1))
    fi
}

ops=tests/cuda/ops_spec.lua
race='WARNING: ThreadSanitizer: data race'
plant 'no fault, under TSan' '' block.h softmax f32 thread $ops 'for softmax$' ''
plant 'a missing __syncthreads' '/call before this one/!{/^    __syncthreads();$/d}' block.h \
    softmax f32 thread $ops 'for softmax$' "$race"
plant 'shared memory that is used again too early' '/call before this one/d' block.h \
    softmax f32 thread $ops 'for softmax$' "$race"
plant 'no fault, under ASan' '' softmax.cu softmax f32 address $ops 'for softmax$' ''
plant 'a read out of bounds' 's/COLUMNS(i, cols) sum += /COLUMNS(i, cols + 1) sum += /' softmax.cu \
    softmax f32 address $ops 'for softmax$' use-after-poison
plant 'no fault, large offsets' '' cuda.h elementwise u8 '' tests/cuda/large_spec.lua 'in u8' ''
plant 'a 32-bit offset' 's/(int64_t)index \* l.stride\[o\]\[d\]/(int32_t)(index * l.stride[o][d])/' \
    cuda.h elementwise u8 '' tests/cuda/large_spec.lua 'in u8' large_spec.lua
plant 'a wrong gradient' 's/(dy \* silu_slope(v))/(dy * silu_slope(v) * 1.001f)/' unary.cu unary \
    f32 '' $ops 'for silu$' 'where the cpu gives'
echo "$passed passed, $failed failed, 0 skipped"
exit $((failed > 0))
