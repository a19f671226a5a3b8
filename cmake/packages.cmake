# SPDX-License-Identifier: Apache-2.0
# Debian packages of the components (cmake/install.cmake) by `cpack`: libinccl0, libinccl-dev, inccl-tools and, where MPI
# was found, inccl-tools-mpi. For packages that lie where Debian's do, configure with the preset `deb` (prefix /usr).
# The builder of packages is their maintainer: there is no default but what Debian's own tools take.
set(contact)
if(DEFINED ENV{DEBFULLNAME} AND DEFINED ENV{DEBEMAIL})
  set(contact "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
endif()
set(INCCL_PACKAGE_CONTACT "${contact}" CACHE STRING "Name and address in packages, NAME <ADDRESS>")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME inccl)
set(CPACK_PACKAGE_VENDOR inccl)
set(CPACK_PACKAGE_CONTACT "${INCCL_PACKAGE_CONTACT}")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL runtime development)
if(inccl_installed_programs)
  list(APPEND CPACK_COMPONENTS_ALL tools)
endif()
if(TARGET inccl_bench_mpi)
  list(APPEND CPACK_COMPONENTS_ALL mpi)
endif()
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/debian_files.cmake)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# What the packages of others say of the library they need: in those that have one.
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY >=)
# For dpkg-shlibdeps, which does not find the library of a package that is being made.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/src)

# The first line of a component's description is its synopsis, unless there is a summary for all packages: this one is
# CPack's own, which it leaves out.
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${CMAKE_PROJECT_NAME} built using CMake")
set(about "All-reduce and the other collectives for ranks that are processes or threads,
shaped like NCCL. Gradients are quantized into chunks, summed in the
compressed domain while they travel, and decoded once; the result has the
same bits on every rank, over every algorithm and transport.
.")

set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME libinccl0)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
file(WRITE ${PROJECT_BINARY_DIR}/cmake/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/cmake/triggers)
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "collectives with in-line compression - library
${about}
This package contains the shared library.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libinccl-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libinccl0 (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "collectives with in-line compression - development files
${about}
This package contains the headers for C and C++, documents and examples.")

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME inccl-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "libinccl0 (= ${PROJECT_VERSION})")
set(CPACK_COMPONENT_TOOLS_DESCRIPTION "collectives with in-line compression - tools
${about}
This package contains inccl-info, inccl-status, inccl-doctor, the benchmarks and recorded
gradients.")

# Only this one needs libmpi: the programs start without.
set(CPACK_DEBIAN_MPI_PACKAGE_NAME inccl-tools-mpi)
set(CPACK_DEBIAN_MPI_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_MPI_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_MPI_PACKAGE_DEPENDS "inccl-tools (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_TOOLS_PACKAGE_RECOMMENDS "inccl-tools-mpi (= ${PROJECT_VERSION}), openmpi-bin")
set(CPACK_COMPONENT_MPI_DESCRIPTION "collectives with in-line compression - benchmarks under MPI
${about}
This package contains the module with which the benchmarks run under mpirun and
beside the calls of MPI.")

include(CPack)
