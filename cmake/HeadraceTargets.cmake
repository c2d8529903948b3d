# Flags for Headrace's own targets. Everything is PRIVATE or scoped to the target, so that a parent project's
# flags are never touched.
function(headrace_target_options target)
  target_compile_features(${target} PRIVATE cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden C_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    # As on x86-64 without further flags: multiplications and additions are fused only where the source says so, and
    # char has a sign.
    target_compile_options(${target} PRIVATE -ffp-contract=off -fsigned-char)
  endif()
  # GCC 12 takes inlined std::string concatenation for an overlapping copy.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wno-unused-parameter
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
    $<$<BOOL:${HEADRACE_WERROR}>:-Werror>)
  if(HEADRACE_SANITIZE)
    # A list with commas cannot stand in a generator expression.
    target_compile_options(${target} PRIVATE -fsanitize=${HEADRACE_SANITIZE} -fno-omit-frame-pointer)
    if(HEADRACE_SANITIZE MATCHES "undefined")
      target_compile_options(${target} PRIVATE -fno-sanitize-recover=undefined)
    endif()
    target_link_options(${target} PRIVATE -fsanitize=${HEADRACE_SANITIZE})
  endif()
endfunction()

# headrace_folder(NAME SOURCES a.cpp ... DEPENDS base ... LINK lib ...)
# One folder of lib/: its objects go into libheadrace, and the static library headrace_NAME serves the unit tests.
function(headrace_folder name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LINK" ${ARGN})
  add_library(headrace_${name}_objects OBJECT ${ARG_SOURCES})
  headrace_target_options(headrace_${name}_objects)
  target_include_directories(headrace_${name}_objects PUBLIC ${PROJECT_SOURCE_DIR}/lib ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(headrace_${name}_objects PUBLIC ${ARG_LINK} headrace_fmt)
  add_library(headrace_${name} STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:headrace_${name}_objects>)
  target_include_directories(headrace_${name} PUBLIC ${PROJECT_SOURCE_DIR}/lib ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(headrace_${name} PUBLIC ${ARG_LINK} headrace_fmt Threads::Threads)
  foreach(dependency ${ARG_DEPENDS})
    target_link_libraries(headrace_${name} PUBLIC headrace_${dependency})
    target_link_libraries(headrace_${name}_objects PUBLIC
      $<TARGET_PROPERTY:headrace_${dependency}_objects,INTERFACE_LINK_LIBRARIES>)
  endforeach()
  set_property(GLOBAL APPEND PROPERTY HEADRACE_FOLDERS ${name})
  set_property(GLOBAL APPEND PROPERTY HEADRACE_LINK ${ARG_LINK})
endfunction()

# headrace_test(NAME SUITE suite SOURCES ... LINK headrace_x ... [TIMEOUT s] [OPTIMIZED] [NOT_EMULATED reason]): a Catch2
# executable registered with ctest under the label SUITE. Its sources are compiled without optimization, in half the time,
# unless OPTIMIZED says that the test's own loops take long. Sanitizers look at the library that it calls, not at the test's own
# code, which takes as long to compile again and has HEADRACE_SANITIZED defined. With NOT_EMULATED it is skipped, for that
# reason, where tests are run by an emulator.
function(headrace_test name)
  cmake_parse_arguments(ARG "OPTIMIZED" "SUITE;TIMEOUT;NOT_EMULATED" "SOURCES;LINK" ${ARGN})
  if(CMAKE_CROSSCOMPILING_EMULATOR AND ARG_NOT_EMULATED)
    add_test(NAME ${ARG_SUITE}.${name} COMMAND ${CMAKE_COMMAND} -E echo
      "SKIPPED: ${name} does not work under emulation: ${ARG_NOT_EMULATED}")
    set_tests_properties(${ARG_SUITE}.${name} PROPERTIES LABELS ${ARG_SUITE} SKIP_REGULAR_EXPRESSION "SKIPPED: ${name}")
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(CMAKE_CROSSCOMPILING_EMULATOR)
    math(EXPR ARG_TIMEOUT "10 * ${ARG_TIMEOUT}")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  headrace_target_options(${name})
  if(NOT ARG_OPTIMIZED)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release,RelWithDebInfo>:-O0>)
  endif()
  if(HEADRACE_SANITIZE)
    target_compile_definitions(${name} PRIVATE HEADRACE_SANITIZED)
  endif()
  if(HEADRACE_SANITIZE MATCHES "address")
    target_compile_options(${name} PRIVATE -fno-sanitize=all)
  endif()
  target_link_libraries(${name} PRIVATE headrace_test_main ${ARG_LINK})
  add_test(NAME ${ARG_SUITE}.${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${ARG_SUITE}.${name} PROPERTIES LABELS ${ARG_SUITE} TIMEOUT ${ARG_TIMEOUT})
endfunction()
