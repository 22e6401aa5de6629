# Cross build with device code for ARM servers (GH200, GB200; CUDA calls them sbsa): the cross build for 64-bit ARM, and this machine's
# nvcc with Debian's C++ cross compiler behind it (scripts/install.sh arm arm-cuda). On such a server itself no toolchain file is needed.
#
# INGOT_SBSA is the toolkit's part for sbsa, a directory with include and lib: the toolkit's targets/sbsa-linux, which NVIDIA's packages
# cuda-cross-sbsa-* fill, or another that -DINGOT_SBSA=DIR names (scripts/try_sbsa.sh makes one).
include(${CMAKE_CURRENT_LIST_DIR}/aarch64-linux-gnu.cmake)
if(NOT INGOT_SBSA)
  set(INGOT_SBSA "$ENV{INGOT_SBSA}")
endif()
if(NOT INGOT_SBSA)
  find_program(nvcc NAMES "$ENV{CUDACXX}" nvcc NO_CACHE)
  if(nvcc)
    file(REAL_PATH "${nvcc}" INGOT_SBSA)
    cmake_path(SET INGOT_SBSA NORMALIZE "${INGOT_SBSA}/../../targets/sbsa-linux")
  endif()
endif()
if(NOT EXISTS "${INGOT_SBSA}/lib/libcudart_static.a")
  message(FATAL_ERROR "the CUDA toolkit's part for ARM servers is not in '${INGOT_SBSA}': install NVIDIA's package cuda-cross-sbsa-VERSION, "
    "or name its directory with -DINGOT_SBSA=DIR; scripts/try_sbsa.sh fetches what is needed")
endif()
set(INGOT_SBSA "${INGOT_SBSA}" CACHE PATH "the CUDA toolkit's part for ARM servers")
set(ENV{INGOT_SBSA} "${INGOT_SBSA}") # the small projects by which CMake tries a compiler read this file, too
set(CMAKE_CUDA_HOST_COMPILER aarch64-linux-gnu-g++)
# With this host compiler nvcc looks into targets/aarch64-linux, which is for Jetsons.
set(CMAKE_CUDA_FLAGS_INIT "-I${INGOT_SBSA}/include -isystem ${INGOT_SBSA}/include/cccl -L${INGOT_SBSA}/lib")
set(CUDAToolkit_TARGET_DIR "${INGOT_SBSA}")
list(PREPEND CMAKE_FIND_ROOT_PATH "${INGOT_SBSA}")
