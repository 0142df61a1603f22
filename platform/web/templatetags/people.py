"""The template filter for a person's or a team's tint: `<span class="chip tint-{{ name|tint }}">`."""

from django import template

from web.run_picture.picture import tint_of

register = template.Library()
register.filter("tint", tint_of)
