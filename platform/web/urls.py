"""Addresses of pages."""

from django.urls import path

from web import health, machines, operators, people, runs_pages
from web.feed.polling import polled_feed

app_name = "web"
urlpatterns = [
    path("", runs_pages.run_list, name="runs"),
    path("runs/new/", runs_pages.new_run, name="new_run"),
    path("runs/<slug:slug>/", runs_pages.run_page, name="run"),
    path("runs/<slug:slug>/curve.svg", runs_pages.curve_image, name="curve"),
    path("runs/<slug:slug>/feed.json", polled_feed, name="feed"),
    path("runs/<slug:slug>/manage/", runs_pages.manage_run, name="manage"),
    path("machines/", machines.machine_list, name="machines"),
    path("machines/<uuid:machine_id>/", machines.change_machine, name="machine"),
    path("machines/tokens/", machines.personal_tokens, name="tokens"),
    path("machines/tokens/<int:token_id>/", machines.revoke_personal_token, name="token"),
    path("signup/", people.sign_up, name="signup"),
    path("login/", people.log_in, name="login"),
    path("logout/", people.log_out, name="logout"),
    path("operator/<str:secret>/", operators.first_operator, name="operator"),
    path("healthz", health.alive, name="healthz"),
    path("readyz", health.ready, name="readyz"),
]
