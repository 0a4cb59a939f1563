"""A page of cgdebug in torch's debug server (torch.distributed.debug, torch 2.13 and later).

    import cgdebug                                       # before the server starts: that is all
    from torch.distributed.debug import start_debug_server
    start_debug_server()                                 # http://RANK0:25999/cgdebug

A server with handlers of its own gets the page by `handlers=[..., Handler()]`, and writes it to its
dump_dir if enabled_dumps has "cgdebug".
"""

from __future__ import annotations

import json

import torch

try:
    from torch.distributed.debug._frontend import DebugHandler, NavLink, Route, fetch_all
except ImportError as error:
    raise ImportError(
        f"cgdebug.integrations.torch_debug needs the debug server of torch 2.13 or later, and this "
        f"is torch {torch.__version__}. Without it, type: cgdebug-cli check"
    ) from error

from .._job._debug_server import ENDPOINT

__all__ = ["Handler"]

_VERDICTS = {
    0: "nothing found",
    1: "something found",
    3: "inconclusive: something was missed",
    4: "nothing to look at",
    5: "no answer in time",
}

# Nothing is escaped unless it says so: torch's environment does not do it by itself.
_TEMPLATE = """
{% extends "base.html" %}
{% block header %}
    <h1>{% block title %}cgdebug{% endblock %}</h1>
{% endblock %}
{% block content %}
    <table>
        <tr><th>Rank</th><th>Job</th><th>Check</th></tr>
        {% for rank in ranks %}
        <tr>
            <td><a href="#rank{{ rank.number }}">{{ rank.number }}</a></td>
            <td>{{ rank.job | e }}</td>
            <td>{{ rank.verdict | e }}</td>
        </tr>
        {% endfor %}
    </table>
    {% for rank in ranks %}
        <h2 id="rank{{ rank.number }}">Rank {{ rank.number }}: {{ rank.verdict | e }}</h2>
        {% if rank.text %}<pre>{{ rank.text | e }}</pre>{% endif %}
        {% for section in rank.sections %}
            <details {{ "open" if section.exit_code or rank.is_only }}>
                <summary><code>{{ section.command | e }}</code></summary>
                <pre>{{ section.output | e }}</pre>
            </details>
        {% endfor %}
    {% endfor %}
{% endblock %}
"""


class Handler(DebugHandler):
    """What `cgdebug-cli check`, `where` and `status` say about the job of each rank."""

    def routes(self) -> list[Route]:
        return [Route("/cgdebug", self._handle)]

    def nav_links(self) -> list[NavLink]:
        return [NavLink("/cgdebug", "cgdebug")]

    def templates(self) -> dict[str, str]:
        return {"cgdebug.html": _TEMPLATE}

    def dump_filename(self) -> str:
        return "cgdebug"

    def dump(self) -> str:
        lines = []
        for rank in self._ranks():
            lines += [f"=== Rank {rank['number']}: {rank['verdict']} ===", rank["text"]]
            for section in rank["sections"]:
                lines += [f"$ {section['command']}", section["output"]]
        return "\n".join(lines)

    def _handle(self, request) -> bytes:
        page = request.frontend.render_template("cgdebug.html", ranks=self._ranks())
        return page.decode().encode("ascii", "xmlcharrefreplace")  # no charset is sent with it

    def _ranks(self) -> list[dict]:
        _, answers = fetch_all(ENDPOINT, timeout=self.fetch_timeout)
        ranks = []
        for number, answer in enumerate(answers):
            if answer.status_code == 200:
                rank = json.loads(answer.text)
            elif answer.status_code == 404:
                rank = {"job": "", "sections": [], "text": "this rank has not imported cgdebug"}
            else:
                rank = {"job": "", "sections": [], "text": answer.text}
            codes = [section["exit_code"] for section in rank["sections"][:1]]
            verdict = _VERDICTS.get(codes[0], "trouble") if codes else "unknown"
            ranks.append(
                {**rank, "number": number, "verdict": verdict, "is_only": len(answers) == 1}
            )
        return ranks
