# SPDX-License-Identifier: Apache-2.0
# cmake -DOUTPUT=file -DFOLDER=tests/folder -DSOURCES=a.cc,b.cc -P unity.cmake: writes a source that is all of them, each with
# its own namespace instead of the nameless one, so that equal names in several files do not collide.
set(all "")
string(REPLACE "," ";" sources "${SOURCES}")
foreach(source IN LISTS sources)
  file(READ ${FOLDER}/${source} text)
  string(MAKE_C_IDENTIFIER "in_${source}" name)
  string(REPLACE "\nnamespace {\n" "\nnamespace ${name} {\n" text "${text}")
  string(APPEND all "#line 1 \"${LINES}/${source}\"\n${text}\n")
endforeach()
file(WRITE ${OUTPUT} "${all}")
