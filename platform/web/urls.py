"""Addresses of pages."""

from django.urls import path
from django.views.decorators.http import require_http_methods

from web import (
    account,
    approval,
    draft_pages,
    health,
    help_pages,
    install,
    invitations,
    machines,
    managing,
    notebook,
    operators,
    outside,
    people,
    preview,
    publish_page,
    runs_pages,
    standings,
    upload_pages,
)
from web.feed.polling import polled_feed

page_or_form = require_http_methods(["GET", "HEAD", "POST"])  # Django's login takes a PUT for a POST

app_name = "web"
urlpatterns = [
    path("", runs_pages.run_list, name="runs"),
    path("runs/new/", runs_pages.new_run, name="new_run"),
    path("runs/<slug:slug>/", runs_pages.run_page, name="run"),
    path("runs/<slug:slug>/manage/", managing.manage_run, name="manage"),
    path("runs/<slug:slug>/edit/", draft_pages.edit_run, name="edit"),
    path("runs/<slug:slug>/delete/", draft_pages.delete_run, name="delete"),
    path("runs/<slug:slug>/extend/", managing.extend_run, name="extend"),
    path("runs/<slug:slug>/finish/", managing.end_run, name="finish"),
    path("runs/<slug:slug>/members/", managing.add_member, name="members"),
    path("runs/<slug:slug>/members/<int:member_id>/", managing.remove_member, name="member"),
    path("runs/<slug:slug>/invitations/", managing.create_invitation, name="invitations"),
    path("runs/<slug:slug>/invitations/<int:invitation_id>/", managing.revoke_invitation, name="invitation"),
    path("runs/<slug:slug>/join/<str:secret>/", invitations.join, name="join"),
    path("uploads/", upload_pages.begin, name="uploads"),
    path("uploads/<uuid:upload_id>/", upload_pages.go_on, name="upload"),
    path("runs/<slug:slug>/publish/", publish_page.publish_run, name="publish"),
    path("runs/<slug:slug>/named/", publish_page.name_me, name="named"),
    path("runs/<slug:slug>/notebook.ipynb", notebook.notebook, name="notebook"),
    path("approve/", approval.approve, name="approve"),
    path("download/", install.download_page, name="download"),
    path("download/<str:name>", install.wheel_file, name="wheel"),
    path("runs/<slug:slug>/curve.png", preview.curve_image, name="curve"),
    path("runs/<slug:slug>/feed.json", polled_feed, name="feed"),
    path("runs/<slug:slug>/hands/", standings.standings_page, name="standings"),
    path("runs/<slug:slug>/you.json", standings.own_place, name="you"),
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
