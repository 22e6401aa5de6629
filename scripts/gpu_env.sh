# Sourced by the GPU scripts, in the source tree and in a pack (pack_gpu.sh). gpu_find [BUILD] sets
#   root     where scripts/, tests/ and tools/ are
#   ingot    the program; empty when it was not built
#   bin      the directory of the test programs gpu_*
# and LD_LIBRARY_PATH to a pack's own libraries and to CUDA's, wherever they are; LIBRARY_PATH_BEFORE is what it was: other programs,
# PyTorch above all, bring libraries of their own and must find those.

# The directories of shared libraries named on the command line, first found first: system, toolkit, Python packages.
gpu_library_dirs() {
    local name dir
    {
        ldconfig -p 2>/dev/null | sed -n 's/.* => //p' | grep -E "/($(IFS='|'; echo "$*"))$" | xargs -r -n 1 dirname
        printf '%s\n' /usr/local/cuda/lib64 /usr/local/cuda*/lib64 /usr/local/cuda*/targets/*/lib /usr/local/cuda*/extras/CUPTI/lib64
        python3 -c 'import glob, site, sys
for path in dict.fromkeys(sys.path + site.getsitepackages()):
    print(*glob.glob(path + "/nvidia/*/lib"), sep="\n")' 2>/dev/null
    } | while read -r dir; do
        for name in "$@"; do
            [ -e "$dir/$name" ] && echo "$dir" && break
        done
    done | awk '!seen[$0]++'
}

gpu_find() {
    local dir dirs=
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    if [ -x "$root/bin/ingot" ]; then
        bin=$root/bin ingot=$root/bin/ingot dirs=$root/lib
        export INGOT_TEST_SOURCE=$root
    else
        bin=${1:-$root/build/release}/tests ingot=${1:-$root/build/release}/ingot
    fi
    [ -n "${INGOT:-}" ] && ingot=$INGOT
    [ -x "$ingot" ] || ingot=
    # cuDNN's parts and the run-time compiler lie in directories of their own
    for dir in $(gpu_library_dirs libcublasLt.so.13 libcudnn.so.9 libnvrtc.so.13 libcupti.so.13 libnccl.so.2); do
        dirs=$dirs${dirs:+:}$dir
    done
    export LIBRARY_PATH_BEFORE=${LD_LIBRARY_PATH:-}
    export LD_LIBRARY_PATH=$dirs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}
