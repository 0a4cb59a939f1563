# For aarch64 from elsewhere, tests under qemu-user; tests/README.md says how.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${CMAKE_CURRENT_LIST_DIR}/../../build/aarch64-root)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
# nvcc compiles for the processor of its host compiler, and has headers and libraries only for its own.
set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
set(CMAKE_CUDA_FLAGS "-isystem ${CMAKE_FIND_ROOT_PATH}/usr/local/cuda/include -L${CMAKE_FIND_ROOT_PATH}/usr/local/cuda/lib")
