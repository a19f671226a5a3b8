# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` installs, in components that are also the Debian packages:
#   runtime      libinccl.so.0
#   development  headers, libinccl.so, libinccl.a, CMake package, pkg-config file, documents, examples
#   tools        the programs of tools/ and perf/ that users run, their man pages, and the recorded gradients
#   mpi          the module with which the benchmarks run under mpirun, where MPI was found
# And cuda, where CUDA was found, which is no Debian package: libinccl_cuda.so.0.
# Everything finds everything else relative to itself, so the tree may be moved as a whole. `uninstall` removes it.
include(CMakePackageConfigHelpers)

set(inccl_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/inccl)
set(inccl_pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS inccl EXPORT inccl-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development)
if(TARGET inccl_static)
  install(TARGETS inccl_static EXPORT inccl-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
endif()
# A directory of its own, which LD_LIBRARY_PATH can name; both names, because some programs open libnccl.so.
install(TARGETS inccl_nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/inccl-nccl COMPONENT runtime
  NAMELINK_COMPONENT runtime)
if(INCCL_HAVE_CUDA)
  install(TARGETS inccl_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cuda NAMELINK_SKIP)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/inccl DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT development FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")

# ---- find_package(inccl)
install(EXPORT inccl-targets NAMESPACE inccl:: DESTINATION ${inccl_cmake_dir}
  COMPONENT development)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/inccl-config.cmake.in
  ${PROJECT_BINARY_DIR}/cmake/inccl-config.cmake INSTALL_DESTINATION ${inccl_cmake_dir})
configure_file(${PROJECT_SOURCE_DIR}/cmake/inccl-config-version.cmake.in
  ${PROJECT_BINARY_DIR}/cmake/inccl-config-version.cmake @ONLY)
install(FILES
  ${PROJECT_BINARY_DIR}/cmake/inccl-config.cmake ${PROJECT_BINARY_DIR}/cmake/inccl-config-version.cmake
  DESTINATION ${inccl_cmake_dir} COMPONENT development)

# ---- pkg-config
foreach(kind LIBDIR INCLUDEDIR)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${kind}}")
    set(INCCL_PC_${kind} "${CMAKE_INSTALL_${kind}}")
  else()
    set(INCCL_PC_${kind} "\${prefix}/${CMAKE_INSTALL_${kind}}")
  endif()
endforeach()
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(INCCL_PC_PREFIX "${CMAKE_INSTALL_PREFIX}")
else()
  file(RELATIVE_PATH up /prefix/${inccl_pc_dir} /prefix)
  string(REGEX REPLACE "/$" "" up ${up})
  set(INCCL_PC_PREFIX "\${pcfiledir}/${up}")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/inccl.pc.in ${PROJECT_BINARY_DIR}/cmake/inccl.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/cmake/inccl.pc DESTINATION ${inccl_pc_dir}
  COMPONENT development)
if(TARGET inccl_static)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/inccl-static.pc.in ${PROJECT_BINARY_DIR}/cmake/inccl-static.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/cmake/inccl-static.pc DESTINATION ${inccl_pc_dir} COMPONENT development)
endif()

# ---- documents and examples
# The documents name each other by their places in the source tree, so these stay.
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md
  ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/SECURITY.md
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT development)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR}
  COMPONENT development FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
install(FILES
  ${PROJECT_SOURCE_DIR}/examples/README.md ${PROJECT_SOURCE_DIR}/examples/CMakeLists.txt
  ${PROJECT_SOURCE_DIR}/examples/Makefile ${PROJECT_SOURCE_DIR}/examples/allreduce.c
  ${PROJECT_SOURCE_DIR}/examples/allreduce.cc ${PROJECT_SOURCE_DIR}/examples/groups.c
  ${PROJECT_SOURCE_DIR}/examples/mpi.c ${PROJECT_SOURCE_DIR}/examples/threads.c
  ${PROJECT_SOURCE_DIR}/examples/torchrun.py
  DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples COMPONENT development)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/nccl DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples
  COMPONENT development FILES_MATCHING PATTERN "*.c" PATTERN "*.h" PATTERN "*.md")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/recipes ${PROJECT_SOURCE_DIR}/examples/train_gpt
  DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples
  COMPONENT development FILES_MATCHING PATTERN "*.py" PATTERN "*.md" PATTERN "*.txt")

# ---- tools
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(inccl_rpath ${CMAKE_INSTALL_LIBDIR})
else()
  file(RELATIVE_PATH inccl_rpath /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${CMAKE_INSTALL_LIBDIR})
  set(inccl_rpath "$ORIGIN/${inccl_rpath}")
endif()
set(inccl_programs inccl-info inccl-status inccl-doctor inccl-tune limits)
foreach(name allreduce reduce_scatter allgather broadcast reduce alltoall gather scatter sendrecv)
  list(APPEND inccl_programs ${name}_bench)
endforeach()
set(inccl_installed_programs)  # their files' names
set(man_pages)
foreach(program IN LISTS inccl_programs)
  if(NOT TARGET ${program})
    continue()
  endif()
  set_target_properties(${program} PROPERTIES INSTALL_RPATH "${inccl_rpath}")
  install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
  get_target_property(file ${program} OUTPUT_NAME)
  if(NOT file)
    set(file ${program})
  endif()
  set(installed ${file})
  # Among all programs of a system, allreduce_bench is inccl-allreduce-bench.
  if(program MATCHES "_bench$")
    string(REPLACE "_" "-" installed "inccl-${file}")
    install(CODE "
      set(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\")
      file(RENAME \"\${folder}/${file}\" \"\${folder}/${installed}\")
      list(TRANSFORM CMAKE_INSTALL_MANIFEST_FILES REPLACE \"/${file}\$\" \"/${installed}\")" COMPONENT tools)
  endif()
  list(APPEND inccl_installed_programs ${installed})
  if(NOT CMAKE_CROSSCOMPILING)
    set(man_page ${PROJECT_BINARY_DIR}/man/${installed}.1)
    add_custom_command(OUTPUT ${man_page}
      COMMAND ${CMAKE_COMMAND} -D PROGRAM=$<TARGET_FILE:${program}> -D NAME=${installed} -D VERSION=${PROJECT_VERSION}
        -D OUTPUT=${man_page} -P ${PROJECT_SOURCE_DIR}/cmake/man_page.cmake
      DEPENDS ${program} ${PROJECT_SOURCE_DIR}/cmake/man_page.cmake VERBATIM)
    list(APPEND man_pages ${man_page})
  endif()
endforeach()
if(inccl_installed_programs)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/data/gradients DESTINATION ${CMAKE_INSTALL_DATADIR}/inccl
    COMPONENT tools)
endif()
if(man_pages)
  add_custom_target(inccl_man_pages ALL DEPENDS ${man_pages})
  install(FILES ${man_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools)
endif()
if(TARGET inccl_bench_mpi)
  install(TARGETS inccl_bench_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/inccl COMPONENT mpi)
endif()

# ---- and back
if(NOT TARGET uninstall)
  add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -D BUILD=${PROJECT_BINARY_DIR}
    -P ${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake VERBATIM)
endif()
