"""Addresses of the site, and who answers where none fits."""

from django.contrib import admin
from django.urls import include, path

from web.api import api
from web.api.docs import page_of

urlpatterns = [
    path("api/v1/docs", page_of(api)),
    path("api/v1/", api.urls),
    path("admin/", admin.site.urls),
    path("", include("web.pages.accounts.external_login_urls")),
    path("", include("web.urls")),
]

handler400 = "web.http.error_responses.not_understood"
handler403 = "web.http.error_responses.not_allowed"
handler404 = "web.http.error_responses.nothing_here"
handler500 = "web.http.error_responses.broken"
