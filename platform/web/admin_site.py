"""Django's admin for operators, entered through the site's own login page."""

from functools import wraps
from typing import Any
from urllib.parse import urlencode

from django.contrib.admin import AdminSite
from django.contrib.admin.apps import AdminConfig
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse


class OperatorsSite(AdminSite):
    site_title = "Manyhands"
    site_header = "Manyhands admin"
    index_title = "Site data"

    def has_permission(self, request: HttpRequest) -> bool:
        """Return True for operators. Other staff accounts, such as the relay's, are not admitted."""
        return bool(request.user.is_active and request.user.is_superuser)

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:  # noqa: FBT001, FBT002  (Django's)
        inner = super().admin_view(view, cacheable)

        @wraps(inner)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if not self.has_permission(request):
                return self.turned_away(request, request.get_full_path())
            answer: HttpResponseBase = inner(request, *args, **kwargs)
            return answer

        return guarded

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        del extra_context
        if self.has_permission(request):
            return redirect("admin:index")
        return self.turned_away(request, reverse("admin:index"))

    def turned_away(self, request: HttpRequest, wanted: str) -> HttpResponse:
        """Redirect a visitor to the login page. Raises PermissionDenied if the visitor is already logged in."""
        if request.user.is_authenticated:
            raise PermissionDenied("These pages are for the operators of this site.")
        return redirect(f"{reverse('web:login')}?{urlencode({'next': wanted})}")


class OperatingConfig(AdminConfig):
    """The admin app's configuration. It keeps Django's label, because templates and the log table depend on it."""

    default_site = "web.admin_site.OperatorsSite"
