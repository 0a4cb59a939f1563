# find_package(cgdebug [COMPONENTS probe client]) defines the target cgdebug::probe and, if the
# client library is installed, cgdebug::client, which needs the protobuf headers that cgdebug was
# built with.
get_filename_component(_cgdebug_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET cgdebug::probe)
  add_library(cgdebug::probe SHARED IMPORTED)
  set_target_properties(cgdebug::probe PROPERTIES
    IMPORTED_LOCATION "${_cgdebug_prefix}/lib/libcgdebug_probe.so"
    IMPORTED_SONAME libcgdebug_probe.so
    INTERFACE_INCLUDE_DIRECTORIES "${_cgdebug_prefix}/include/cgdebug"
    INTERFACE_COMPILE_FEATURES cxx_std_20)
endif()
if(NOT TARGET cgdebug::client AND EXISTS "${_cgdebug_prefix}/lib/libcgdebug_client.a")
  find_package(Protobuf QUIET)
  find_package(Threads QUIET)
  if(TARGET protobuf::libprotobuf AND TARGET Threads::Threads)
    add_library(cgdebug::client STATIC IMPORTED)
    set_target_properties(cgdebug::client PROPERTIES
      IMPORTED_LOCATION "${_cgdebug_prefix}/lib/libcgdebug_client.a"
      INTERFACE_INCLUDE_DIRECTORIES "${_cgdebug_prefix}/include/cgdebug"
      INTERFACE_COMPILE_FEATURES cxx_std_20
      INTERFACE_LINK_LIBRARIES "${_cgdebug_prefix}/lib/libcgdebug_wire.a;${_cgdebug_prefix}/lib/libcgdebug_endpoint.a;${_cgdebug_prefix}/lib/libcgdebug_launch.a;${_cgdebug_prefix}/lib/libcgdebug_base.a;${_cgdebug_prefix}/lib/libcgdebug_proto.a;protobuf::libprotobuf;Threads::Threads;${CMAKE_DL_LIBS}")
  endif()
endif()
set(cgdebug_probe_FOUND TRUE)
set(cgdebug_client_FOUND FALSE)
if(TARGET cgdebug::client)
  set(cgdebug_client_FOUND TRUE)
endif()
foreach(_cgdebug_component IN LISTS cgdebug_FIND_COMPONENTS)
  if(cgdebug_FIND_REQUIRED_${_cgdebug_component} AND NOT cgdebug_${_cgdebug_component}_FOUND)
    set(cgdebug_FOUND FALSE)
    set(cgdebug_NOT_FOUND_MESSAGE
      "cgdebug has no component ${_cgdebug_component} here; the client needs an install by CMake and protobuf's headers")
  endif()
endforeach()
unset(_cgdebug_component)
unset(_cgdebug_prefix)
