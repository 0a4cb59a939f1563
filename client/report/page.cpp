#include "client/report/page.h"

#include <string_view>

#include "client/report/page_files.h"

namespace cgdebug::report {
namespace {

std::string Escaped(std::string_view text) {
  std::string html;
  for (const char byte : text) {
    const bool is_control =
        (byte >= 0 && byte < ' ' && byte != '\n' && byte != '\t') || byte == 127;
    switch (byte) {
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '&':
        html += "&amp;";
        break;
      case '"':
        html += "&quot;";
        break;
      default:
        html += is_control ? '?' : byte;
    }
  }
  return html;
}

// Folded away, as it is no finding.
std::string MemoryBlock(const std::string& text) {
  if (text.empty()) return "";
  return R"(<details id="memory"><summary>Memory of graphs</summary><pre tabindex="0" )"
         R"(role="region" aria-label="Memory of graphs">)" +
         Escaped(text) + "</pre></details>";
}

}  // namespace

bool HasPage() { return !kLibrary.empty(); }

std::size_t PageBytes() {
  return kPage.size() + kStyle.size() + kScript.size() + kLibrary.size() + kLicence.size();
}

// Each place comes once in the page, as "{{name}}".
std::string MakePage(const PageParts& parts) {
  std::string html;
  for (std::string_view rest = kPage; !rest.empty();) {
    const std::size_t begin = rest.find("{{");
    html += rest.substr(0, begin);
    if (begin == std::string_view::npos) break;
    const std::size_t end = rest.find("}}", begin);
    const std::string_view name = rest.substr(begin + 2, end - begin - 2);
    if (name == "title") html += Escaped(parts.title);
    if (name == "verdict") html += Escaped(parts.verdict);
    if (name == "text") html += Escaped(parts.text);
    if (name == "memory") html += MemoryBlock(parts.memory);
    if (name == "style") html += kStyle;
    if (name == "licence") html += Escaped(kLicence);
    if (name == "library") html += kLibrary;
    if (name == "data") html += parts.data;
    if (name == "script") html += kScript;
    rest.remove_prefix(end + 2);
  }
  return html;
}

}  // namespace cgdebug::report
