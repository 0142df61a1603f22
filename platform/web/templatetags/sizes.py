"""The template filter for sizes, in the units used by the agent and by uploads (`frontend/src/uploads/answers.ts`)."""

from django import template

from web.words import in_bytes

register = template.Library()
register.filter("in_bytes", in_bytes)
