"""The template filter for sizes, in the units of the agent and of uploads (`frontend/src/uploads/answers.ts`)."""

from django import template

from peer_agent.machine.language import in_bytes

register = template.Library()
register.filter("in_bytes", in_bytes)
