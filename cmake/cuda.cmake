# Device code. Included by the top list after ingot_core exists. On ARM nvcc takes plain chars as unsigned, whatever the host compiler is told
# (the C files: signed): .cu files compute with none.
if(INGOT_CUDA_FOUND)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  set(CMAKE_CUDA_STANDARD 17)
  # One architecture builds in a quarter of the time: -DINGOT_CUDA_ARCHS=90a-real
  set(INGOT_CUDA_ARCHS "80-real;90a-real;100a-real;120-real" CACHE STRING "GPU architectures to compile for")
  file(GLOB_RECURSE INGOT_CUDA_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.cu)
  # It has C files alone, but was made before CUDA was enabled: without this a first configuration fails.
  set_target_properties(ingot_core PROPERTIES CUDA_ARCHITECTURES "${INGOT_CUDA_ARCHS}")
  target_link_libraries(ingot_core PUBLIC $<LINK_ONLY:CUDA::cudart_static> ${CMAKE_DL_LIBS})
  # The toolkit's headers are for the files that call it alone.
  set(INGOT_CUDA_CALLERS ${INGOT_SOURCES})
  list(FILTER INGOT_CUDA_CALLERS INCLUDE REGEX "/src/(.*/)?cuda/")
  foreach(dir ${CUDAToolkit_INCLUDE_DIRS})
    set_property(SOURCE ${INGOT_CUDA_CALLERS} APPEND PROPERTY COMPILE_OPTIONS "-isystem${dir}")
  endforeach()
  # cuBLASLt and cuDNN are loaded when a GPU is opened (ops/cuda/libs.h), NCCL when several ranks have one (comm/gpu/cuda/nccl.c).
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/ops/cuda/libs.c ${PROJECT_SOURCE_DIR}/src/comm/gpu/cuda/nccl.c APPEND PROPERTY
    COMPILE_DEFINITIONS "INGOT_CUDA_LIBRARY_DIR=\"${CUDAToolkit_LIBRARY_DIR}\"")
  if(INGOT_CUDA_SOURCES)
    add_library(ingot_cuda STATIC ${INGOT_CUDA_SOURCES})
    set_target_properties(ingot_cuda PROPERTIES CUDA_ARCHITECTURES "${INGOT_CUDA_ARCHS}")
    target_compile_options(ingot_cuda PRIVATE -O3 -lineinfo -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror)
    # Does device code compile? Host code is the same for all architectures: -fatbin leaves it out. What is made cannot be linked.
    option(INGOT_CUDA_DEVICE_ONLY "compile device code alone (preset cuda-archs)" OFF)
    if(INGOT_CUDA_DEVICE_ONLY)
      target_compile_options(ingot_cuda PRIVATE -fatbin)
    endif()
    # Half the time. The files of Hopper's own instructions keep their level: only with it ptxas says what it serialises.
    option(INGOT_CUDA_QUICK "optimise device code little: to prove that it compiles and links (preset cuda-check)" OFF)
    if(INGOT_CUDA_QUICK)
      set(INGOT_CUDA_SIMPLE ${INGOT_CUDA_SOURCES})
      list(FILTER INGOT_CUDA_SIMPLE EXCLUDE REGEX "_sm90\\.cu$")
      set_source_files_properties(${INGOT_CUDA_SIMPLE} PROPERTIES COMPILE_OPTIONS "-Xcicc=-O1;-Xptxas=-O1")
    endif()
    target_include_directories(ingot_cuda PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(ingot_core PUBLIC ingot_cuda)
    target_link_libraries(ingot_cuda PUBLIC ingot_core)
  endif()
endif()
