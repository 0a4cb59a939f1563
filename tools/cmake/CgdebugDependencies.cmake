# Everything cgdebug builds on. A missing package ends with what to install.
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(Protobuf 3.21 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_path(CGDEBUG_HIGHWAY_INCLUDE hwy/foreach_target.h REQUIRED)  # Google Highway: libhwy-dev

find_package(SQLite3 REQUIRED)
find_path(CGDEBUG_XXHASH_INCLUDE xxhash.h)
if(NOT CGDEBUG_XXHASH_INCLUDE)
  message(FATAL_ERROR "cgdebug: no xxhash.h found. Type: apt-get install libxxhash-dev")
endif()

# d3 draws the reports: node-d3 of Debian and Ubuntu, or CGDEBUG_D3=.../d3.min.js with its licence.
find_file(CGDEBUG_D3 d3.min.js PATHS /usr/share/nodejs/d3/dist NO_CMAKE_FIND_ROOT_PATH)
find_file(CGDEBUG_D3_LICENCE NAMES copyright LICENSE PATHS /usr/share/doc/node-d3 NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
if(NOT CGDEBUG_D3 OR NOT CGDEBUG_D3_LICENCE)
  set(CGDEBUG_D3 "")
  set(CGDEBUG_D3_LICENCE "")
  message(STATUS "cgdebug: no d3: cgdebug-cli report is left out. Type: apt-get install node-d3")
endif()

# prometheus-cpp writes the daemon's metrics. Debian and Ubuntu have only the shared library; tools/wheel builds
# the static one.
find_path(CGDEBUG_PROMETHEUS_INCLUDE prometheus/text_serializer.h)
find_library(CGDEBUG_PROMETHEUS NAMES libprometheus-cpp-core.a prometheus-cpp-core)
if(CGDEBUG_PROMETHEUS AND CGDEBUG_PROMETHEUS_INCLUDE)
  add_library(cgdebug_prometheus INTERFACE)
  add_library(cgdebug::prometheus ALIAS cgdebug_prometheus)
  target_include_directories(cgdebug_prometheus SYSTEM INTERFACE ${CGDEBUG_PROMETHEUS_INCLUDE})
  target_link_libraries(cgdebug_prometheus INTERFACE ${CGDEBUG_PROMETHEUS})
else()
  set(CGDEBUG_PROMETHEUS "")
  message(STATUS "cgdebug: no prometheus-cpp: cgdebug-daemon exports no metrics. "
                 "Type: apt-get install prometheus-cpp-dev")
endif()

# ncurses draws `cgdebug-cli top`. Static, like SQLite below: terminal descriptions are files that it
# looks for in /etc/terminfo, /lib/terminfo and /usr/share/terminfo, where every distribution has them.
find_path(CGDEBUG_NCURSES_INCLUDE NAMES curses.h)
find_library(CGDEBUG_NCURSES NAMES libncursesw.a ncursesw ONLY_CMAKE_FIND_ROOT_PATH)
find_library(CGDEBUG_TINFO NAMES libtinfo.a tinfo ONLY_CMAKE_FIND_ROOT_PATH)
if(CGDEBUG_NCURSES AND CGDEBUG_TINFO AND CGDEBUG_NCURSES_INCLUDE)
  add_library(cgdebug_ncurses INTERFACE)
  target_include_directories(cgdebug_ncurses SYSTEM INTERFACE ${CGDEBUG_NCURSES_INCLUDE})
  target_link_libraries(cgdebug_ncurses INTERFACE ${CGDEBUG_NCURSES} ${CGDEBUG_TINFO})
else()
  set(CGDEBUG_NCURSES "")
  message(STATUS "cgdebug: no ncurses: the screen of cgdebug-cli top is left out. Type: apt-get install libncurses-dev")
endif()

# fmt and spdlog as headers, because the daemon and the command line run on machines that have neither. What
# only tests run takes the libraries: the headers are a third of what it compiles.
add_library(cgdebug_fmt INTERFACE)
add_library(cgdebug::fmt ALIAS cgdebug_fmt)
add_library(cgdebug_spdlog INTERFACE)
add_library(cgdebug::spdlog ALIAS cgdebug_spdlog)
if(CGDEBUG_SANITIZE)
  target_link_libraries(cgdebug_fmt INTERFACE fmt::fmt)
  target_link_libraries(cgdebug_spdlog INTERFACE spdlog::spdlog)
else()
  target_link_libraries(cgdebug_fmt INTERFACE fmt::fmt-header-only)
  # spdlog's own target would bring the shared fmt.
  target_compile_definitions(cgdebug_spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
  target_include_directories(cgdebug_spdlog SYSTEM INTERFACE
    $<TARGET_PROPERTY:spdlog::spdlog_header_only,INTERFACE_INCLUDE_DIRECTORIES>)
endif()

# Static SQLite and protobuf: the daemon and the command line run on machines that have none.
find_library(CGDEBUG_SQLITE_STATIC libsqlite3.a)
if(CGDEBUG_SQLITE_STATIC)
  set_target_properties(SQLite::SQLite3 PROPERTIES IMPORTED_LOCATION ${CGDEBUG_SQLITE_STATIC}
    INTERFACE_LINK_LIBRARIES "m;Threads::Threads;${CMAKE_DL_LIBS}")
endif()
find_library(CGDEBUG_PROTOBUF_STATIC libprotobuf.a)
if(CGDEBUG_PROTOBUF_STATIC)
  set_target_properties(protobuf::libprotobuf PROPERTIES
    IMPORTED_LOCATION ${CGDEBUG_PROTOBUF_STATIC} IMPORTED_LOCATION_RELEASE ${CGDEBUG_PROTOBUF_STATIC}
    IMPORTED_LOCATION_NONE ${CGDEBUG_PROTOBUF_STATIC})
endif()

if(CGDEBUG_WITH_PYTHON OR CGDEBUG_WITH_TORCH)
  find_package(Python 3.10 COMPONENTS Interpreter Development.Module REQUIRED)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_path('purelib'))"
    OUTPUT_VARIABLE CGDEBUG_SITE_PACKAGES OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()

# The CUDA runtime: a toolkit, or the one that torch's own wheels bring.
if(CGDEBUG_WITH_CUDA)
  find_path(CGDEBUG_CUDA_INCLUDE cuda_runtime_api.h
    HINTS $ENV{CUDA_HOME} $ENV{CUDA_PATH} ${CGDEBUG_SITE_PACKAGES}/nvidia/cu13 /usr/local/cuda
    PATH_SUFFIXES include)
  find_library(CGDEBUG_CUDART_STATIC cudart_static
    HINTS $ENV{CUDA_HOME} $ENV{CUDA_PATH} ${CGDEBUG_SITE_PACKAGES}/nvidia/cu13 /usr/local/cuda
    PATH_SUFFIXES lib64 lib lib/x64 targets/x86_64-linux/lib targets/sbsa-linux/lib)
  if(NOT CGDEBUG_CUDA_INCLUDE OR NOT CGDEBUG_CUDART_STATIC)
    message(FATAL_ERROR "cgdebug: no CUDA runtime found. Install the CUDA Toolkit or torch's CUDA wheels "
                        "(pip install torch), set CUDA_HOME, or configure with --preset offline.")
  endif()
  add_library(cgdebug_cudart INTERFACE)
  target_include_directories(cgdebug_cudart SYSTEM INTERFACE ${CGDEBUG_CUDA_INCLUDE})
  target_link_libraries(cgdebug_cudart INTERFACE ${CGDEBUG_CUDART_STATIC} Threads::Threads rt dl)

  # The direct lane's kernels need nvcc: a toolkit's, or that of the nvidia-cuda-nvcc wheel. Without
  # it cgdebug has the callback lane only, and says so.
  find_program(CGDEBUG_NVCC nvcc
    HINTS $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda ${CGDEBUG_SITE_PACKAGES}/nvidia/cu13
    PATH_SUFFIXES bin)
  if(CGDEBUG_NVCC)
    set(CMAKE_CUDA_COMPILER ${CGDEBUG_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES 75-virtual)
    enable_language(CUDA)
    set(CGDEBUG_HAS_NVCC ON)
  else()
    message(STATUS "cgdebug: no nvcc: lane=\"direct\" and TensorStats on the GPU are left out. "
                   "Install the CUDA Toolkit or: pip install nvidia-cuda-nvcc")
  endif()
endif()

# torch without find_package(Torch): that wants a full toolkit although the op compiles no kernel.
if(CGDEBUG_WITH_TORCH)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import os, importlib.util as u; print(os.path.dirname(u.find_spec('torch').origin))"
    OUTPUT_VARIABLE CGDEBUG_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_missing
    ERROR_QUIET)
  if(torch_missing)
    message(FATAL_ERROR "cgdebug: ${Python_EXECUTABLE} has no torch. Type: ${Python_EXECUTABLE} -m pip install "
                        "torch, or configure with --preset offline.")
  endif()
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "from importlib.metadata import version; print(version('torch').split('+')[0])"
    OUTPUT_VARIABLE CGDEBUG_TORCH_VERSION OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(CGDEBUG_OP_TORCH 2.10)  # the oldest that the op loads into
  if(CGDEBUG_TORCH_VERSION VERSION_LESS 2.10)
    message(FATAL_ERROR "cgdebug: torch ${CGDEBUG_TORCH_VERSION} is older than 2.10. Type: "
                        "${Python_EXECUTABLE} -m pip install 'torch>=2.10'")
  endif()
  add_library(cgdebug_libtorch INTERFACE)
  target_include_directories(cgdebug_libtorch SYSTEM INTERFACE
    ${CGDEBUG_TORCH_DIR}/include ${CGDEBUG_TORCH_DIR}/include/torch/csrc/api/include)
  if(CMAKE_CROSSCOMPILING)
    # Its headers suit every processor, its library does not: the op needs only that library's name.
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/torch_cpu.cpp CONTENT "")
    add_library(torch_cpu SHARED ${CMAKE_BINARY_DIR}/torch_cpu.cpp)
    target_link_libraries(cgdebug_libtorch INTERFACE -Wl,--no-as-needed torch_cpu)
  else()
    target_link_libraries(cgdebug_libtorch INTERFACE ${CGDEBUG_TORCH_DIR}/lib/libtorch_cpu.so)
  endif()
  # Only what torch 2.10 has, with CUDA's declarations whether or not this torch has CUDA.
  target_compile_definitions(cgdebug_libtorch INTERFACE TORCH_TARGET_VERSION=0x020a000000000000 USE_CUDA)
endif()

if(CGDEBUG_WITH_PYTHON)
  execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir
    OUTPUT_VARIABLE pybind11_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_package(pybind11 2.10 REQUIRED HINTS ${pybind11_dir})
endif()
if(CGDEBUG_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
