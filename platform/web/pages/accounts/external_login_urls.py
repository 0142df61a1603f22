"""The addresses of logins by other sites, under the names by which allauth looks for them, and nothing else of it."""

from django.urls import path

from web.pages.accounts import external_login

urlpatterns = [
    path("login/with/github/", external_login.start, {"provider_id": "github"}, name="github_login"),
    path("login/with/github/callback/", external_login.callback, {"provider_id": "github"}, name="github_callback"),
    path("login/with/<slug:provider_id>/", external_login.start, name="openid_connect_login"),
    path("login/with/<slug:provider_id>/callback/", external_login.callback, name="openid_connect_callback"),
]
