// result.h: a value, or a message that says why there is none. Shaped like std::expected, for
// C++20.
//
//   Result<int> Parse(std::string_view text) {
//     if (text.empty()) return Error{"empty number"};
//     return 7;
//   }
//   Result<int> n = Parse(text);
//   if (!n.ok()) return std::move(n).error();
//   Use(*n);
//
// A message is for the person at the terminal: what happened, to what, and what to type next.
#pragma once

#include <cerrno>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>

namespace cgdebug {

struct Error {
  std::string message;
};

// "<what>: <strerror text>".
inline Error ErrnoError(std::string_view what, int error_number = errno) {
  return Error{std::string(what) + ": " + std::generic_category().message(error_number)};
}

// Lifetime: owns its value or its error; references from `*`, `->` and error() live as long as it
//           does.
template <typename T>
class [[nodiscard]] Result {
  static_assert(!std::is_reference_v<T> && !std::is_same_v<std::remove_cv_t<T>, Error>);

 public:
  using value_type = T;

  template <typename U = T>
  requires(std::is_constructible_v<T, U&&> && !std::is_same_v<std::remove_cvref_t<U>, Result> &&
           !std::is_same_v<std::remove_cvref_t<U>, Error>) explicit(!std::is_convertible_v<U&&, T>)
      Result(U&& value)
      : state_(std::in_place_index<0>, std::forward<U>(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const noexcept { return state_.index() == 0; }
  // Not for Result<bool>: `if (result)` would read as the value.
  explicit operator bool() const noexcept requires(!std::is_same_v<T, bool>) { return ok(); }

  // Fails: throws std::logic_error with the message if there is no value; check ok() first.
  T& value() & { return RequireValue(), *std::get_if<0>(&state_); }
  const T& value() const& { return RequireValue(), *std::get_if<0>(&state_); }
  T&& value() && { return RequireValue(), std::move(*std::get_if<0>(&state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  template <typename U>
  T value_or(U&& fallback) const& {
    return ok() ? **this : static_cast<T>(std::forward<U>(fallback));
  }
  template <typename U>
  T value_or(U&& fallback) && {
    return ok() ? *std::move(*this) : static_cast<T>(std::forward<U>(fallback));
  }

  // Requires: !ok().
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  void RequireValue() const {
    if (!ok()) throw std::logic_error("Result has no value: " + error().message);
  }

  std::variant<T, Error> state_;
};

// A default-constructed one is success.
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}

  bool ok() const noexcept { return ok_; }
  explicit operator bool() const noexcept { return ok_; }

  // Requires: !ok().
  const Error& error() const& { return error_; }
  Error&& error() && { return std::move(error_); }

 private:
  Error error_;
  bool ok_ = true;
};

}  // namespace cgdebug
