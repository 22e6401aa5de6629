# CPU code by instruction set. Included by the top list when INGOT_SOURCES is complete; sets INGOT_SIMD_OBJECTS.
# A source is compiled once per instruction set of the architecture: SIMD(name) in src/ops/cpu/simd/*.c adds the suffix, and
# src/ops/cpu/fast.c picks the table at run time. All else runs on any x86-64-v3, any 64-bit ARM.
set(INGOT_SIMD_SOURCES ${INGOT_SOURCES})
list(FILTER INGOT_SIMD_SOURCES INCLUDE REGEX "/src/ops/cpu/simd/")
list(FILTER INGOT_SOURCES EXCLUDE REGEX "/src/ops/cpu/simd/")
# src/ops/cpu/isa_ARCH.c: the table of instruction sets.
list(FILTER INGOT_SOURCES EXCLUDE REGEX "/src/ops/cpu/isa_[^/]*\\.c$")
list(APPEND INGOT_SOURCES ${PROJECT_SOURCE_DIR}/src/ops/cpu/isa_${INGOT_ARCH}.c)

# Debug builds: -O2, for these files are most of a test's time. Sanitizers mark where the scope of an indexed array begins and ends; arrays of vectors
# then lie in memory, not in registers, and attention takes four times as long. What goes out of scope there is seen by -Wdangling-pointer.
set(INGOT_SIMD_OPTIMISE $<IF:$<CONFIG:Debug>,-O2$<SEMICOLON>-fno-sanitize-address-use-after-scope,-O3>)
# ingot_simd(isa "flags" ["regex of the files' names"])
set(INGOT_SIMD_OBJECTS)
function(ingot_simd isa flags)
  set(sources ${INGOT_SIMD_SOURCES})
  if(ARGC GREATER 2)
    list(FILTER sources INCLUDE REGEX "/(${ARGV2})\\.c$")
  endif()
  separate_arguments(flags)
  add_library(ingot_simd_${isa} OBJECT ${sources})
  target_link_libraries(ingot_simd_${isa} PRIVATE ingot_flags)
  target_compile_options(ingot_simd_${isa} PRIVATE ${flags})
  target_compile_definitions(ingot_simd_${isa} PRIVATE SIMD_ISA=${isa})
  set(INGOT_SIMD_OBJECTS ${INGOT_SIMD_OBJECTS} $<TARGET_OBJECTS:ingot_simd_${isa}> PARENT_SCOPE)
endfunction()
if(INGOT_ARCH STREQUAL "x86")
  ingot_simd(v3 "-march=x86-64-v3 ${INGOT_SIMD_OPTIMISE} -fno-signed-zeros")
  ingot_simd(v4 "-march=x86-64-v4 ${INGOT_SIMD_OPTIMISE} -fno-signed-zeros -mprefer-vector-width=512")
  # Some once more for processors with AMX: attn.c with its small products on tiles, the others for the BF16 conversions.
  ingot_simd(amx "-march=x86-64-v4 -mavx512bf16 -mamx-tile -mamx-bf16 ${INGOT_SIMD_OPTIMISE} -fno-signed-zeros -mprefer-vector-width=512"
    "attn|fp8|act|loss|norm|rope")
  set_source_files_properties(${INGOT_SOURCES} PROPERTIES COMPILE_OPTIONS "-march=x86-64-v3")
  set(INGOT_AMX_SOURCES ${INGOT_SOURCES})
  list(FILTER INGOT_AMX_SOURCES INCLUDE REGEX "/src/ops/cpu/amx/")
  set_source_files_properties(${INGOT_AMX_SOURCES} PROPERTIES
    COMPILE_OPTIONS "-march=x86-64-v4;-mavx512bf16;-mamx-tile;-mamx-bf16;${INGOT_SIMD_OPTIMISE};-ffp-contract=fast;-mprefer-vector-width=512")
else()
  ingot_simd(neon "-march=armv8-a ${INGOT_SIMD_OPTIMISE} -fno-signed-zeros")
  # Some once more for processors with the bf16 instructions: GEMMs of BF16 by BFMMLA, the others for the BF16 conversions.
  ingot_simd(bf16 "-march=armv8.2-a+bf16 ${INGOT_SIMD_OPTIMISE} -fno-signed-zeros" "gemm|fp8|act|loss|norm|rope")
  list(FILTER INGOT_SOURCES EXCLUDE REGEX "/src/ops/cpu/amx/")
  set(INGOT_ORACLE_SOURCES ${INGOT_SOURCES}) # GCC 12 fails on loops with fmin and fmax there ("in vect_transform_reduction")
  list(FILTER INGOT_ORACLE_SOURCES INCLUDE REGEX "/src/ops/cpu/oracle/")
  set_source_files_properties(${INGOT_ORACLE_SOURCES} PROPERTIES COMPILE_OPTIONS "-fno-tree-vectorize")
endif()
# A source's options come after its target's, so this wins over the -ffp-contract=off that all the rest is compiled with.
set_source_files_properties(${INGOT_SIMD_SOURCES} PROPERTIES COMPILE_OPTIONS "-ffp-contract=fast")
set(INGOT_SIMD_CHAINS ${INGOT_SIMD_SOURCES}) # long chains of arithmetic: interleaved before registers are dealt out
list(FILTER INGOT_SIMD_CHAINS INCLUDE REGEX "/(act|loss)\\.c$")
set_source_files_properties(${INGOT_SIMD_CHAINS} PROPERTIES
  COMPILE_OPTIONS "-ffp-contract=fast;$<$<C_COMPILER_ID:GNU>:-fschedule-insns;-fsched-pressure>")
