# How the host kernels are compiled, for the library and for the check program (../checks). Nothing is compiled for the
# machine at hand: simd/*.cc is compiled once per instruction set, each time into a namespace of its own (PF_TARGET), and
# those that multiply, with bfloat16/*.cc, once more for each that has products of bfloat16 (PF_BFLOAT16_PRODUCTS).
file(GLOB kernel_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cc)
file(GLOB simd_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/simd/*.cc)
set(kernel_flags -O3 -Wall -fno-math-errno -fno-trapping-math -fvisibility=hidden)
set(targets baseline)
set(sources_baseline ${simd_sources})
set(flags_baseline)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND targets avx2 avx512 avx512_bf16 amx)
  set(sources_avx2 ${simd_sources})
  set(sources_avx512 ${simd_sources})
  file(GLOB product_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/bfloat16/*.cc
       ${CMAKE_CURRENT_LIST_DIR}/simd/attention_*.cc)
  set(sources_avx512_bf16 ${product_sources})
  set(sources_amx ${product_sources})
  set(flags_avx2 -mavx2 -mfma -mf16c -mbmi2)
  set(flags_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mbmi2 -mprefer-vector-width=512)
  # What gcc 12 warns of stands in its own header.
  set(flags_product ${flags_avx512} -DPF_BFLOAT16_PRODUCTS -Wno-uninitialized -Wno-maybe-uninitialized)
  set(flags_avx512_bf16 ${flags_product} -mavx512bf16)
  set(flags_amx ${flags_product} -mamx-tile -mamx-bf16)
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
