"""The addresses of logins by other sites, under the names by which allauth looks for them, and nothing else of it."""

from django.urls import path

from web import outside

urlpatterns = [
    path("login/with/github/", outside.start, {"provider_id": "github"}, name="github_login"),
    path("login/with/github/callback/", outside.callback, {"provider_id": "github"}, name="github_callback"),
    path("login/with/<slug:provider_id>/", outside.start, name="openid_connect_login"),
    path("login/with/<slug:provider_id>/callback/", outside.callback, name="openid_connect_callback"),
]
