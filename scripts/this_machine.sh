# What a build for this machine alone needs; sourced. Sets machine_options (for cmake) and machine_text (for people).
#
# Device code is for the compute capabilities of this machine's GPUs. Code for 9.0 and 10.0 uses what these alone have
# (90a, 100a); code for 8.0 and 12.0 runs on all of 8.x and 12.x.
machine_options=-DINGOT_CUDA=OFF
machine_text="this processor, without device code"
machine_architectures() { # the architectures of cmake/cuda.cmake that the GPUs need, as a list of CMake
    nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d ' ' | sort -u |
        sed -n 's/^8\..*/80-real/p; s/^9\.0$/90a-real/p; s/^10\.0$/100a-real/p; s/^12\..*/120-real/p' | sort -u | paste -s -d ';'
}
for machine_nvcc in "${CUDACXX:-nvcc}" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    machine_nvcc=$(command -v "$machine_nvcc" 2>/dev/null) || continue
    machine_found=$(machine_architectures) || true # no nvidia-smi, no driver
    [ -n "$machine_found" ] || break
    machine_options="-DINGOT_CUDA=ON -DINGOT_CUDA_ARCHS=$machine_found -DCMAKE_CUDA_COMPILER=$machine_nvcc"
    machine_text="this processor and its GPU ($machine_found)"
    break
done
