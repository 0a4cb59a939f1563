// shared_copy.h: copies payload bytes that another thread or process may be overwriting.
//
// The ring is a seqlock: a copy that raced is thrown away, because the entry's word changed. The
// bytes themselves are therefore copied with memcpy, at memory speed. ThreadSanitizer cannot know
// that the copy is discarded, so under it the same bytes move as relaxed atomics.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstring>

namespace cgdebug::ring {

#if defined(CGDEBUG_SANITIZED_THREAD)
inline void CopyShared(void* to, const void* from, std::size_t bytes) noexcept {
  auto* destination = static_cast<unsigned char*>(to);
  auto* source = static_cast<unsigned char*>(const_cast<void*>(from));
  for (std::size_t i = 0; i < bytes; ++i) {
    const unsigned char byte = std::atomic_ref(source[i]).load(std::memory_order_relaxed);
    std::atomic_ref(destination[i]).store(byte, std::memory_order_relaxed);
  }
}
#else
inline void CopyShared(void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes != 0) std::memcpy(to, from, bytes);
}
#endif

// A field of a shared struct as an atomic. Fields are plain integers in the layout headers, because
// kernels and other languages read the same bytes.
template <typename T>
T LoadRelaxed(const T& field) noexcept {
  return std::atomic_ref(const_cast<T&>(field)).load(std::memory_order_relaxed);
}
template <typename T>
T LoadAcquire(const T& field) noexcept {
  return std::atomic_ref(const_cast<T&>(field)).load(std::memory_order_acquire);
}
template <typename T>
void StoreRelaxed(T& field, T value) noexcept {
  std::atomic_ref(field).store(value, std::memory_order_relaxed);
}
template <typename T>
void StoreRelease(T& field, T value) noexcept {
  std::atomic_ref(field).store(value, std::memory_order_release);
}
// Adds to a counter that several host threads grow. Release: a thread that sees the new count sees
// what was stored before it.
template <typename T>
void Add(T& field, T value) noexcept {
  std::atomic_ref(field).fetch_add(value, std::memory_order_release);
}

}  // namespace cgdebug::ring
