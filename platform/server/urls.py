"""The site's URLs, and the views for errors."""

from django.contrib import admin
from django.urls import include, path

from web.api import api
from web.api.docs import page_of
from web.pages.accounts import external_login

urlpatterns = [
    path("api/v1/docs", page_of(api)),
    path("api/v1/", api.urls),
    path("admin/", admin.site.urls),
    # allauth finds its pages by these names. No other allauth pages are mounted.
    path("login/with/github/", external_login.start, {"provider_id": "github"}, name="github_login"),
    path("login/with/github/callback/", external_login.callback, {"provider_id": "github"}, name="github_callback"),
    path("login/with/<slug:provider_id>/", external_login.start, name="openid_connect_login"),
    path("login/with/<slug:provider_id>/callback/", external_login.callback, name="openid_connect_callback"),
    path("", include("web.urls")),
]

handler400 = "web.http.error_responses.not_understood"
handler403 = "web.http.error_responses.not_allowed"
handler404 = "web.http.error_responses.nothing_here"
handler500 = "web.http.error_responses.broken"
