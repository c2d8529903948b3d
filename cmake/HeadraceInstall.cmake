# What `cmake --install` puts into a prefix: both libraries, the headers, the command, a CMake package and headrace.pc.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(HEADRACE_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/headrace)

# The static library links imported targets by name; headraceConfig.cmake makes them again for its users.
install(TARGETS headrace headrace_static EXPORT headraceTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/headrace DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET headrace_cli)
  file(RELATIVE_PATH library_from_bin /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
  set_target_properties(headrace_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${library_from_bin}")
  install(TARGETS headrace_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

install(EXPORT headraceTargets NAMESPACE headrace:: DESTINATION ${HEADRACE_PACKAGE_DIR})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/headraceConfig.cmake.in
  ${CMAKE_BINARY_DIR}/headraceConfig.cmake INSTALL_DESTINATION ${HEADRACE_PACKAGE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/headraceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/headraceConfig.cmake ${CMAKE_BINARY_DIR}/headraceConfigVersion.cmake
  DESTINATION ${HEADRACE_PACKAGE_DIR})

set(HEADRACE_PC_ZSTD "")
if(ZSTD_FOUND)
  set(HEADRACE_PC_ZSTD "-lzstd ")
endif()
set(HEADRACE_PC_ZLIB "")
if(ZLIB_FOUND)
  set(HEADRACE_PC_ZLIB "-lz ")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/headrace.pc.in ${CMAKE_BINARY_DIR}/headrace.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/headrace.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
