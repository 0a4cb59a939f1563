# cgdebug_public_header(SOURCE COPY): a header for C++ users. Its copies include one another as
# "cgdebug/...", because nothing else of this tree is in the include path of a program.
function(cgdebug_public_header source copy)
  file(READ ${source} text)
  string(REPLACE "\"proto/layout/" "\"cgdebug/layout/" text "${text}")
  string(REPLACE "\"daemon/core/base/" "\"cgdebug/" text "${text}")
  file(GENERATE OUTPUT ${copy} CONTENT "${text}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
endfunction()
