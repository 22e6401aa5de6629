# cpack: a Debian package and a tar.xz that may be unpacked anywhere, of a build with INGOT_STATIC=ON: `cmake --workflow --preset package`.
# The one program in both needs glibc 2.34 alone: Debian 12, Ubuntu 22.04, RHEL 9 and later. With CUDA it needs the C++ library, too: its
# archive would ask for glibc 2.36 (arc4random).
if(NOT INGOT_STATIC)
  return() # what this machine's libraries are linked with runs on this machine
endif()
set(INGOT_MAINTAINER "ingot maintainers <maintainers@ingot.invalid>" CACHE STRING "who answers for the Debian package")
set(CPACK_GENERATOR "DEB;TXZ")
set(CPACK_PACKAGE_NAME ingot)
if(INGOT_CUDA_FOUND)
  set(CPACK_PACKAGE_NAME ingot-cuda)
  set(CPACK_DEBIAN_PACKAGE_PROVIDES "ingot (= ${PROJECT_VERSION}-1)")
  # Loaded when a GPU is opened; NVIDIA's repository has them.
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libcublas-${CUDAToolkit_VERSION_MAJOR}-${CUDAToolkit_VERSION_MINOR}, libcudnn9-cuda-${CUDAToolkit_VERSION_MAJOR}")
  set(nccl ", libnccl2")
  set(other ingot)
else()
  set(other ingot-cuda)
endif()
set(CPACK_DEBIAN_PACKAGE_CONFLICTS ${other})
set(CPACK_DEBIAN_PACKAGE_REPLACES ${other})
set(CPACK_PACKAGE_VENDOR "ingot")
set(CPACK_PACKAGE_CONTACT "${INGOT_MAINTAINER}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "pre-training of language models as one program")
set(CPACK_PACKAGE_DESCRIPTION "Text in, trained and evaluated model out: tokenizer, token shards, planner,
training on CPUs and NVIDIA GPUs, launcher, evaluation, generation, and
import from and export to Hugging Face's formats. No Python is needed.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_CHECKSUM SHA256)
set(CPACK_ARCHIVE_THREADS 1) # the same bytes on any number of cores

set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(INGOT_DEBIAN_VERSION ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
if(CMAKE_CROSSCOMPILING AND INGOT_ARCH STREQUAL arm64) # otherwise dpkg says it
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
endif()
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "bible-kjv, openmpi-bin${nccl}") # ingot demo; mpirun
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/package_kind.cmake)
set(CPACK_SYSTEM_NAME linux-${CMAKE_SYSTEM_PROCESSOR})
include(CPack)
