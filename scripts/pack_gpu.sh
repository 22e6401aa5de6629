#!/usr/bin/env bash
# A pack for a GPU machine that has nothing of ours and no network: pack_gpu.sh [-o FILE.tar.xz] [--no-build] [BUILD_DIR]
# Holds the program, the GPU tests with their fixtures, the scripts and tools, and the shared libraries that are not CUDA's.
# Builds BUILD_DIR (build/release) first; INGOT_CUDA_ARCHS=90a-real builds for one architecture. There:
#   mkdir pack && tar -xJf ingot-gpu.tar.xz -C pack && pack/scripts/gpu_check.sh     (or scripts/bench_gpu.sh, or `pack/run ingot ...`)
# The C and C++ libraries there must not be older than those here.
set -euo pipefail
cd "$(dirname "$0")/.."
pack=ingot-gpu.tar.xz build= make=1
while [ $# -gt 0 ]; do
    case $1 in
    -o) pack=$2 && shift ;;
    --no-build) make= ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | grep -v '^set' && exit 0 ;;
    -*) echo "pack_gpu.sh: unknown option $1" >&2 && exit 2 ;;
    *) build=$1 ;;
    esac
    shift
done
build=${build:-build/release}
case $pack in /*) ;; *) pack=$PWD/$pack ;; esac

if [ -n "$make" ]; then
    [ -f "$build/build.ninja" ] || cmake --preset release -B "$build" ${INGOT_CUDA_ARCHS:+-DINGOT_CUDA_ARCHS="$INGOT_CUDA_ARCHS"} >/dev/null
    mapfile -t targets < <(ninja -C "$build" -t targets all | sed -nE 's/^(gpu_[A-Za-z0-9_]+): phony$/\1/p')
    [ ${#targets[@]} -gt 0 ] || { echo "pack_gpu.sh: $build has no GPU tests: it was configured without CUDA" >&2; exit 2; }
    ninja -C "$build" ingot "${targets[@]}"
fi
[ -x "$build/ingot" ] || { echo "pack_gpu.sh: $build/ingot is not there" >&2; exit 2; }

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/bin" "$stage/lib" "$stage/tests"
strip -o "$stage/bin/ingot" "$build/ingot"
for file in "$build"/tests/gpu_*; do
    [ -f "$file" ] && [ -x "$file" ] && strip -o "$stage/bin/$(basename "$file")" "$file"
done

# What the programs need and neither the system nor CUDA brings. Not libstdc++: other programs there may need a newer one than ours.
for file in "$stage"/bin/*; do ldd "$file"; done | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u |
    grep -vE '/(libc|libm|libdl|libpthread|librt|libresolv|libgcc_s|libstdc..|ld-linux[^/]*)\.so|/lib(cuda|cudart|cublas|cublasLt|cudnn|nvrtc|cupti|nv)[^/]*\.so|/cuda[^/]*/' |
    while read -r file; do
        strip -o "$stage/lib/$(basename "$file")" "$file" || cp -L "$file" "$stage/lib/"
    done

cp -r scripts tools examples "$stage/"
cp tests/shell.sh "$stage/tests/"
for file in tests/*/gpu_*.sh; do
    mkdir -p "$stage/$(dirname "$file")"
    cp "$file" "$stage/$file"
done
mkdir -p "$stage/tests/fixtures"
cp -r tests/fixtures/hf "$stage/tests/fixtures/"
cat >"$stage/run" <<'RUN'
#!/usr/bin/env bash
# run COMMAND...: a program of this pack (bin/) or any other, with the pack's libraries and CUDA's.
. "$(dirname "$0")/scripts/gpu_env.sh"
gpu_find
PATH=$bin:$PATH exec "$@"
RUN
chmod +x "$stage/run"
git describe --always --dirty --tags >"$stage/VERSION" 2>/dev/null || true

# Every program holds the same kernels: a dictionary that reaches back over all of them keeps one copy.
tar -C "$stage" -cf - . | xz --x86 --lzma2=preset="${PACK_PRESET:-6}",dict=256MiB >"$pack"
printf '%s: %s, unpacked %s\n' "$pack" "$(du -h "$pack" | cut -f1)" "$(du -sh "$stage" | cut -f1)"
