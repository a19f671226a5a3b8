# SPDX-License-Identifier: Apache-2.0
# Makes the man page of a program out of what it prints with --help: cmake -D PROGRAM=FILE -D NAME=INSTALLED_NAME
# -D VERSION=X.Y.Z -D OUTPUT=FILE -P man_page.cmake
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND ${PROGRAM} --help OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
if(NOT help MATCHES "^([^\n]+)\\. Manual: (docs/[a-z-]+\\.md)\nUsage: [^\n ]*([^\n]*)\n(.*)$")
  message(FATAL_ERROR "${PROGRAM} --help: no summary, manual and usage")
endif()
set(summary "${CMAKE_MATCH_1}")
set(manual "${CMAKE_MATCH_2}")
set(usage "${NAME}${CMAKE_MATCH_3}")
set(options "${CMAKE_MATCH_4}")
string(REGEX REPLACE "\n\n+" "\n\n" options "${options}")
string(STRIP "${options}" options)
foreach(text summary usage options)
  string(REPLACE "\\" "\\e" ${text} "${${text}}")
  string(REPLACE "-" "\\-" ${text} "${${text}}")
  string(REGEX REPLACE "(^|\n)([.'])" "\\1\\\\&\\2" ${text} "${${text}}")
endforeach()
string(TOUPPER ${NAME} title)
file(WRITE ${OUTPUT} ".TH ${title} 1 \"\" \"inccl ${VERSION}\" \"User Commands\"
.SH NAME
${NAME} \\- ${summary}
.SH SYNOPSIS
.B ${usage}
.SH OPTIONS
.nf
${options}
.fi
.SH SEE ALSO
${manual} of inccl, installed in share/doc/inccl
")
