"""Template filters for a recipe's texts in the page's language.

Use `{{ recipe.material|material_words }}` and `{{ recipe|summary_words }}`.
"""

from django import template

from peer_agent.protocol.recipe import Material, Recipe
from web.words import material_in_words_of_page, summary_of_page

register = template.Library()


@register.filter
def material_words(material: Material) -> Material:
    return material_in_words_of_page(material)


@register.filter
def summary_words(recipe: Recipe) -> str:
    return summary_of_page(recipe)
