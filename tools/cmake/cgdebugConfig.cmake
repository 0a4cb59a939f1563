# find_package(cgdebug): the target cgdebug::probe, from where this file lies.
get_filename_component(_cgdebug_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET cgdebug::probe)
  add_library(cgdebug::probe SHARED IMPORTED)
  set_target_properties(cgdebug::probe PROPERTIES
    IMPORTED_LOCATION "${_cgdebug_prefix}/lib/libcgdebug_probe.so"
    IMPORTED_SONAME libcgdebug_probe.so
    INTERFACE_INCLUDE_DIRECTORIES "${_cgdebug_prefix}/include/cgdebug"
    INTERFACE_COMPILE_FEATURES cxx_std_20)
endif()
unset(_cgdebug_prefix)
