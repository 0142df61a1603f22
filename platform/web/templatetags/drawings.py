"""Template tags that draw strokes, such as `{% art "lost" label %}`, and the filter for a person's or team's tint.

`<span class="chip tint-{{ name|tint }}">` gives a name its colour.
"""

from django import template

from web import strokes
from web.run_picture.picture import tint_of

register = template.Library()
register.simple_tag(strokes.art, name="art")
register.simple_tag(strokes.bundle, name="bundle")
register.filter("tint", tint_of)
register.filter("bars", strokes.bars)
