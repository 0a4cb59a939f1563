// grid_overlap.cuh: grids that overlap, by programmatic dependent launch.
//
// A grid may start before the grid that it follows ends (CUDA C++ Programming Guide). It must wait
// for that grid, at its own end at the latest; otherwise a third grid could run before both are
// done.
#pragma once

namespace cgdebug::capture {

__device__ inline void WaitForGridsBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void LetNextGridStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace cgdebug::capture
