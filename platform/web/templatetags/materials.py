"""`{{ recipe.material|material_words }}`: what people bring to a recipe, in the language of the page."""

from django import template

from peer_agent.protocol.recipe import Material
from web.words import material_in_words_of_page

register = template.Library()


@register.filter
def material_words(material: Material) -> Material:
    """The same in words that readers of the page have."""
    return material_in_words_of_page(material)
