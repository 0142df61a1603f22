"""Template tags that draw strokes, such as `{% art "lost" label %}`, and filters for tints and small bar charts.

`<span class="chip tint-{{ name|tint }}">` shows a person's or team's name in its tint.
"""

from django import template

from web import strokes
from web.run_picture.picture import tint_of

register = template.Library()
register.simple_tag(strokes.art, name="art")
register.simple_tag(strokes.bundle, name="bundle")
register.filter("tint", tint_of)
register.filter("bars", strokes.bars)
