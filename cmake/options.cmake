# SPDX-License-Identifier: Apache-2.0
# Compiler options of everything that is built here: warnings are errors, floating point is never contracted (results are
# bit-identical over instruction sets), sanitizers on request.
add_library(inccl_options INTERFACE)
target_compile_options(inccl_options INTERFACE
  -Wall -Wextra -Werror -Wshadow $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual>
  -ffp-contract=off -fno-math-errno -fstack-protector-strong)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # Locks as src/base/mutex.h declares them; beta: also the order in which they are taken.
  target_compile_options(inccl_options INTERFACE -Wno-pass-failed -Wthread-safety -Wthread-safety-beta)
endif()
target_compile_definitions(inccl_options INTERFACE
  _GNU_SOURCE $<$<NOT:$<CONFIG:Debug>>:_GLIBCXX_ASSERTIONS>)
if(INCCL_SANITIZE)
  target_compile_options(inccl_options INTERFACE
    -fsanitize=${INCCL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    # vptr opens a pipe, and takes every object for broken where a test leaves no descriptors; enum refuses the values
    # outside an enumeration that callers of a C API may pass.
    -fno-sanitize=vptr,enum)
  target_link_options(inccl_options INTERFACE -fsanitize=${INCCL_SANITIZE})
else()
  target_compile_definitions(inccl_options INTERFACE
    $<$<CONFIG:Release,RelWithDebInfo>:_FORTIFY_SOURCE=2>)
endif()
# For what reads a command line and prints: it compiles in two thirds of the time.
add_library(inccl_program_options INTERFACE)
target_link_libraries(inccl_program_options INTERFACE inccl_options)
target_compile_options(inccl_program_options INTERFACE $<$<CONFIG:Release>:-O1>)
