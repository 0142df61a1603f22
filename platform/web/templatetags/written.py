"""The template filter for texts that a model wrote."""

from django import template

from web.words import tidied

register = template.Library()
register.filter("tidied", tidied)
