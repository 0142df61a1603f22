"""Django's admin with our site in the place of its own."""

from django.contrib.admin.apps import AdminConfig


class OperatingConfig(AdminConfig):
    """Keeps Django's label, so that its templates and its table of changes stay where they are."""

    default_site = "web.admin_site.site.OperatorsSite"
