// parsed_option.h: command-line options that a function of ours parses, with its own error
// messages.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace cgdebug {

// `parse` turns the text into a Result<T>. Lifetime: `value` outlives the parsing.
template <typename T, typename Parse>
CLI::Option* AddParsed(CLI::App& app, const std::string& name, const Parse& parse, T* value,
                       const std::string& type_name, const std::string& help) {
  return app
      .add_option_function<std::string>(
          name,
          [name, parse, value](const std::string& text) {
            const auto parsed = parse(text);
            if (!parsed.ok()) throw CLI::ValidationError(name, parsed.error().message);
            *value = *parsed;
          },
          help)
      ->type_name(type_name);
}

}  // namespace cgdebug
