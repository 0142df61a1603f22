"""Addresses of pages."""

from django.urls import path
from django.views.decorators.http import require_http_methods

from web import account, health, help_pages, machines, operators, outside, people, runs_pages

page_or_form = require_http_methods(["GET", "HEAD", "POST"])  # Django's login takes a PUT for a POST

app_name = "web"
urlpatterns = [
    path("", runs_pages.run_list, name="runs"),
    path("runs/new/", runs_pages.new_run, name="new_run"),
    path("runs/<slug:slug>/", runs_pages.run_page, name="run"),
    path("runs/<slug:slug>/manage/", runs_pages.manage_run, name="manage"),
    path("machines/", machines.machine_list, name="machines"),
    path("machines/<uuid:machine_id>/", machines.change_machine, name="machine"),
    path("machines/tokens/", machines.personal_tokens, name="tokens"),
    path("machines/tokens/<int:token_id>/", machines.revoke_personal_token, name="token"),
    path("signup/", people.sign_up, name="signup"),
    path("login/", page_or_form(people.log_in), name="login"),
    path("login/name/", outside.choose_name, name="choose_name"),
    path("logout/", people.log_out, name="logout"),
    path("account/", account.account_page, name="account"),
    path("account/password/", account.change_password, name="change_password"),
    path("account/sessions/", account.end_other_sessions, name="end_sessions"),
    path("password/<str:person_id>/<str:token>/", account.new_password, name="new_password"),
    path("operator/<str:secret>/", operators.first_operator, name="operator"),
    path("help/", help_pages.help_index, name="help"),
    path("help/<slug:topic>/", help_pages.help_page, name="help_page"),
    path("healthz", health.alive, name="healthz"),
    path("readyz", health.ready, name="readyz"),
]
