"""The documentation as a site: `.venv/bin/python -m sphinx -W -n -b html docs var/docs/html`, offline."""

project = "Manyhands"
author = "The Manyhands maintainers"
html_title = "Manyhands"
html_theme = "furo"
html_show_copyright = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#a8431a", "color-brand-content": "#a8431a"},
    "dark_css_variables": {"color-brand-primary": "#f08a58", "color-brand-content": "#f08a58"},
}

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4  # as GitHub makes them, so that one link works in both places
myst_enable_extensions = ["html_image"]
myst_links_external_new_tab = False
nitpicky = True
exclude_patterns = ["plan.md"]  # what is being built, while it is being built
