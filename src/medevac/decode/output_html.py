"""One HTML file that needs nothing else: the incidents of a log, for a ticket or a mail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from medevac.catalog.schema import NOT_PUBLISHED
from medevac.decode.output import iso
from medevac.decode.wording import blame_words, fact_words, root_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from medevac.catalog.schema import Bucket
    from medevac.decode.incidents_story import Incident

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark; --line: #8884; --critical: #c62828; --warning: #b26a00; --unknown: #7b1fa2; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
article { border: 1px solid var(--line); border-left: .4rem solid var(--line); border-radius: .3rem;
  margin: 1rem 0; padding: .8rem 1rem; }
article.critical { border-left-color: var(--critical); }
article.warning { border-left-color: var(--warning); }
article.unknown { border-left-color: var(--unknown); }
h2 { font-size: 1.05rem; margin: 0; }
dl { display: grid; grid-template-columns: 7rem 1fr; gap: .1rem .8rem; margin: .6rem 0; }
dt { opacity: .7; } dd { margin: 0; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td, th { border-top: 1px solid var(--line); padding: .15rem .5rem; text-align: left; }
td.n { text-align: right; }
.when { opacity: .7; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p>{{ incidents|length }} incident{{ "" if incidents|length == 1 else "s" }}
from {{ events }} event{{ "" if events == 1 else "s" }}.</p>
{% for i in incidents %}
<article class="{{ i.severity }}" id="{{ i.incident }}">
<h2>{{ i.severity }}: {{ root_words(i) }}</h2>
<p class="when">{{ iso(i.first) or "time not known" }}{% if i.last != i.first %} to {{ iso(i.last) }}{% endif %}
{%- if i.nodes %} on {{ i.nodes|join(", ") }}{% endif %}</p>
<dl>
<dt>meaning</dt><dd>{{ i.meaning }}</dd>
<dt>blame</dt><dd>{{ blame_words(i.blame) }}</dd>
<dt>do now</dt><dd>{{ words(i.action_now) }}</dd>
<dt>do after</dt><dd>{{ words(i.action_after) }}</dd>
<dt>job dies</dt><dd>{{ {True: "yes", False: "no"}.get(i.kills_job, "depends") }}</dd>
<dt>for</dt><dd>{{ i.audience }}</dd>
{% if i.repeats %}<dt>repeats</dt><dd>{{ i.repeats }} earlier on the same part</dd>{% endif %}
{% if i.root and i.root.file %}<dt>first line</dt><dd>{{ i.root.file }}:{{ i.root.line }}</dd>{% endif %}
</dl>
<table>
<tr><th>fact</th><th>node</th><th>part</th><th>role</th><th>lines</th><th>different</th></tr>
{% for f in i.facts %}
<tr><td>{{ fact_words(f) }}</td><td>{{ f.node or "" }}</td><td>{{ f.pci or "" }}</td><td>{{ f.role }}</td>
<td class="n">{{ f.count }}</td><td class="n">{{ f.distinct }}</td></tr>
{% endfor %}
</table>
</article>
{% endfor %}
</body>
</html>
"""


def render(incidents: Sequence[Incident], buckets: Mapping[str, Bucket], *, title: str, events: int) -> str:
    """The page. Everything that a log said is escaped."""
    from jinja2 import Environment

    def words(name: str) -> str:
        bucket = buckets.get(name)
        return name if name == NOT_PUBLISHED or bucket is None else f"{bucket.meaning} ({name})"

    page = Environment(autoescape=True, trim_blocks=True).from_string(PAGE)
    return page.render(
        title=title,
        incidents=incidents,
        events=events,
        words=words,
        iso=iso,
        root_words=root_words,
        blame_words=blame_words,
        fact_words=fact_words,
    )
