#!/bin/bash
# nvcc_gate.sh - what nvcc makes of the kernels, without a GPU:
#
#   no kernel spills or has local memory, but those below;
#   where dtype is not f64 none but those below reckons in doubles;
#   the kernels of a file take the registers that tests/cuda/registers.txt says, and have as many
#   lines with doubles;
#   tensor cores, asynchronous copies and accesses of 128 bits are where they must be.
#
#   tests/cuda/nvcc_gate.sh            a test for each architecture and dtype
#   tests/cuda/nvcc_gate.sh --renew    writes registers.txt
#
# The last line is "N passed, N failed, N skipped"; all is skipped where there is no nvcc.
cd "$(dirname "$0")/../.." || exit 1
table=tests/cuda/registers.txt
passed=0 failed=0
nvcc=$(PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda/bin command -v nvcc) ||
    { echo 'nvcc: skipped, it is not here' && echo '0 passed, 0 failed, 14 skipped' && exit 0; }
version=$("$nvcc" --version | grep -oE 'release [0-9.]+')
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT

# Angles: CUDA's sine and cosine reduce large ones in local memory.
may_have_local='sin|cos|table_body|normal_draw'

# Angles and random numbers, whatever the dtype; the norm of gradients, which is one number a step;
# what begins as f64.
may_have_doubles='(sin|cos)(_backward)?_map|trig_reduction|table_body|(normal|uniform)_draw|'
may_have_doubles+='squares|arange|from_f64'

# NAME ARCH DTYPE: what ptxas says of each kernel, and its PTX.
compile() {
    mkdir "$folder/$2-$3-$1"
    "$nvcc" -O3 -std=c++17 -gencode "arch=compute_$2,code=sm_$2" -DUL_TYPE="$3" -cubin \
        --keep --keep-dir "$folder/$2-$3-$1" \
        -Xptxas -v,--warn-on-double-precision-use -o "$folder/$2-$3-$1.cubin" \
        "kernels/cuda/$1.cu" >"$folder/$2-$3-$1.log" 2>&1 || echo "$1 does not compile" >&2
}
export nvcc folder
export -f compile

sources() { # DTYPE
    local all
    all=$(cd kernels/cuda && ls ./*.cu | sed 's|^./||; s|\.cu$||' | grep -vxE 'backend|blaslt')
    if [[ $1 == [iu]* ]]; then
        grep -xE 'shape|elementwise|reduce|sort|embedding|random' <<<"$all"
    else
        grep -vx table <<<"$all"
    fi
}

# ARCH DTYPE: a line "arch dtype file registers doubles" for each file, and kernels at fault.
judge() {
    local log name
    for log in "$folder/$1-$2"-*.log; do
        name=$(basename "$log" .log)
        [[ $2 == f64 ]] || awk '/\.(entry|func) / { kernel = $0 }
            /\.f64/ && !/\.(reg|param)/ && !said[kernel]++ { print kernel }' \
            "${log%.log}"/*.ptx | c++filt | grep -vE "$may_have_doubles" |
            sed "s/^/FAULT $2 reckons in doubles: /"
        c++filt <"$log" | awk -v file="${name##*-}" -v arch="sm_$1" -v dtype="$2" \
            -v local_ok="$may_have_local" '
            /error/ { print "FAULT " file ": " $0 }
            /double precision/ && dtype != "f64" { doubles++ }
            /Compiling entry function/ { kernel = $0 }
            /bytes stack frame/ && !/ 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill/ &&
                kernel !~ local_ok { print "FAULT " dtype " " kernel $0 }
            match($0, /Used [0-9]+ registers/) {
                n = substr($0, RSTART + 5) + 0
                if (n > most) most = n
            }
            END { if (most) print arch, dtype, file, most, doubles + 0 }'
    done
}

# From the table; another nvcc has other registers.
differs() { # ARCH DTYPE
    [[ $version == "$(head -n 1 $table)" ]] &&
        ! diff <(grep "^sm_$1 $2 " $table) <(grep -v '^FAULT' "$folder/judged")
}

gate() { # ARCH DTYPE
    judge "$1" "$2" >"$folder/judged"
    grep -v '^FAULT' "$folder/judged" >>"$folder/registers"
    [[ $renew ]] && { grep '^FAULT' "$folder/judged"; return; }
    if grep '^FAULT' "$folder/judged" || differs "$1" "$2"; then
        echo "nvcc, sm_$1 $2: not as it must be (--renew writes $table)"
        failed=$((failed + 1))
    else
        passed=$((passed + 1))
    fi
}

# FILE DTYPE INSTRUCTION...: each must be in what is compiled of it.
must_have() {
    local file=$1 dtype=$2 what
    shift 2
    for what; do
        if grep -qE "$what" "$folder/80-$dtype-$file/$file.ptx"; then
            passed=$((passed + 1))
        else
            echo "nvcc: $file.cu of $dtype has no $what" && failed=$((failed + 1))
        fi
    done
}

[[ $1 == --renew ]] && renew=1
for arch in 80 90a; do
    for dtype in f32 bf16 f64; do
        for name in $(sources $dtype); do echo "$name $arch $dtype"; done
    done
done | xargs -P "$(nproc)" -L 1 bash -c 'compile "$@"' _
for arch in 80 90a; do
    for dtype in f32 bf16 f64; do gate $arch $dtype; done
done
if [[ $renew ]]; then
    { echo "$version" && cat "$folder/registers"; } >$table
    exit
fi
for file in attention_flash attention_flash_backward; do
    must_have $file bf16 'mma\.sync.*m16n8k16.*bf16' 'ldmatrix.*x4' 'cp\.async.*16'
done
for dtype in f32 bf16; do
    for file in attention_backward matmul; do
        must_have $file $dtype "ld\.global(\.nc)?\.v4\.[uf]32"
    done
    for file in norm softmax loss optimizer rope embedding shape unary binary; do
        must_have $file $dtype "ld\.global(\.nc)?\.v4\.[uf]32" "st\.global\.v4\.[uf]32"
    done
done
echo "$passed passed, $failed failed, 0 skipped"
exit $((failed > 0))
