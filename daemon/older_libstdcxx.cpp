// older_libstdcxx.cpp: only in a wheel. GCC 12's libstdc++ has a second version of
// std::condition_variable::wait, GLIBCXX_3.4.30, which systems with glibc 2.34 lack. The linker
// hands the daemon's calls (--wrap) to the version that every libstdc++ has; the two differ in
// `noexcept`.
__asm__(
    ".symver cgdebug_wait,_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"
    "@GLIBCXX_3.4.11");

extern "C" void cgdebug_wait(void* condition, void* lock);

extern "C" void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(void* condition,
                                                                                 void* lock) {
  cgdebug_wait(condition, lock);
}
