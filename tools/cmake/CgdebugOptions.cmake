# cgdebug_options: what every target of ours is compiled with. Third-party headers are SYSTEM.
add_library(cgdebug_options INTERFACE)
add_library(cgdebug::options ALIAS cgdebug_options)
target_compile_options(cgdebug_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor>)
target_compile_definitions(cgdebug_options INTERFACE CGDEBUG_VERSION="${PROJECT_VERSION}")
if(CGDEBUG_SANITIZE)
  target_compile_options(cgdebug_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${CGDEBUG_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all>)
  target_link_options(cgdebug_options INTERFACE -fsanitize=${CGDEBUG_SANITIZE})
  # GCC and clang have no common macro for it.
  target_compile_definitions(cgdebug_options INTERFACE CGDEBUG_SANITIZED)
  if(CGDEBUG_SANITIZE STREQUAL "thread")
    target_compile_definitions(cgdebug_options INTERFACE CGDEBUG_SANITIZED_THREAD)
  endif()
endif()
if(CGDEBUG_FUZZ)  # libFuzzer is told which branches an input takes, in the generated files too
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache requires this for precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
endif()
