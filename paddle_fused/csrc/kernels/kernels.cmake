# How the host kernels are compiled, for the library and for the check program (../checks). Nothing is compiled for the
# machine at hand: simd/*.cc is compiled once per instruction set, each time into a namespace of its own (PF_TARGET), and
# those that multiply in tiles, with amx/*.cc, once more for AMX.
file(GLOB kernel_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cc)
file(GLOB simd_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/simd/*.cc)
set(kernel_flags -O3 -Wall -fno-math-errno -fno-trapping-math -fvisibility=hidden)
set(targets baseline)
set(sources_baseline ${simd_sources})
set(flags_baseline)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND targets avx2 avx512 amx)
  set(sources_avx2 ${simd_sources})
  set(sources_avx512 ${simd_sources})
  file(GLOB sources_amx CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/amx/*.cc
       ${CMAKE_CURRENT_LIST_DIR}/simd/attention_*.cc)
  set(flags_avx2 -mavx2 -mfma -mf16c -mbmi2)
  set(flags_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mbmi2 -mprefer-vector-width=512)
  # What gcc 12 warns of stands in its own header.
  set(flags_amx ${flags_avx512} -mamx-tile -mamx-bf16 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()

# Sets `objects` to those of all targets.
function(compile_simd objects)
  set(all)
  foreach(target ${targets})
    add_library(simd_${target} OBJECT ${sources_${target}})
    target_compile_options(simd_${target} PRIVATE ${kernel_flags} ${flags_${target}})
    target_compile_definitions(simd_${target} PRIVATE PF_TARGET=${target})
    list(APPEND all $<TARGET_OBJECTS:simd_${target}>)
  endforeach()
  set(${objects} ${all} PARENT_SCOPE)
endfunction()
