// passwords.h: passwords of URLs that were typed. Everything in this process has "***" instead of
// them, so that no message, answer or file tells them; only what leaves for a store has them again.
#pragma once

#include <string>
#include <vector>

namespace cgdebug::cli {

// The words of a command line, without the passwords of their URLs, which are remembered. Requires:
// no other thread runs yet.
std::vector<std::string> HidePasswords(int argc, char** argv);
// `word` with the password that was typed.
std::string WithPassword(std::string word);

}  // namespace cgdebug::cli
