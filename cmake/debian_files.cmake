# SPDX-License-Identifier: Apache-2.0
# Run by cpack on the installed components before they become packages: adds to each what Debian wants in every package,
# and takes out the run paths, which installations elsewhere need. Refuses to make packages without a maintainer.
if(NOT CPACK_PACKAGE_CONTACT MATCHES "^[^<>]+ <[^<>@ ]+@[^<>@ ]+>$")
  message(FATAL_ERROR "packages need a name and address of who answers for them, not \"${CPACK_PACKAGE_CONTACT}\": "
    "configure with -DINCCL_PACKAGE_CONTACT='NAME <ADDRESS>', or set DEBFULLNAME and DEBEMAIL before the first time")
endif()
find_program(gzip gzip REQUIRED)
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER ${component} upper)
  set(package ${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
  set(root ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/${component}/usr)
  if(NOT IS_DIRECTORY ${root})
    message(FATAL_ERROR "${root}: the component ${component} is not installed")
  endif()
  set(documents ${root}/share/doc/${package})
  file(MAKE_DIRECTORY ${documents})
  file(WRITE ${documents}/copyright "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: inccl

Files: *
Copyright: 2026 the inccl authors
License: Apache-2.0
 On Debian systems, the full text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
")
  file(WRITE ${documents}/changelog "inccl (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * Built from the sources of this version.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
  execute_process(COMMAND ${gzip} -9nf ${documents}/changelog COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB man_pages ${root}/share/man/man1/*.1)
  if(man_pages)
    execute_process(COMMAND ${gzip} -9nf ${man_pages} COMMAND_ERROR_IS_FATAL ANY)
  endif()
  file(GLOB programs ${root}/bin/*)
  foreach(program IN LISTS programs)
    file(RPATH_REMOVE FILE ${program})
  endforeach()
endforeach()
