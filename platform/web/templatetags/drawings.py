"""Template tags that draw strokes, such as `{% art "lost" label %}`."""

from django import template

from web import strokes

register = template.Library()
register.simple_tag(strokes.art, name="art")
register.simple_tag(strokes.bundle, name="bundle")
