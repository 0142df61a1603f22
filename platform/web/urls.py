"""Addresses of pages."""

from django.urls import path
from django.views.decorators.http import require_http_methods

from web.feed.own_links import own_links
from web.feed.polling import polled_feed
from web.http.theme import choose_theme
from web.pages.accounts import account, approve_machine, external_login, first_operator, leaving, login, machines
from web.pages.people import person, team
from web.pages.runs import (
    activity,
    curve_table,
    drafts,
    invitations,
    leaderboard,
    manage,
    notebook,
    preview,
    publish,
    share,
    sources,
    uploads,
)
from web.pages.runs import run as runs_pages
from web.pages.runs.forms import estimate
from web.pages.site import front, health, help_pages, install, styleguide

page_or_form = require_http_methods(["GET", "HEAD", "POST"])  # Django's login takes a PUT for a POST

app_name = "web"
urlpatterns = [
    path("", front.front_page, name="runs"),
    path("preview.png", preview.site_image, name="site_preview"),
    path("runs/new/", drafts.new_run, name="new_run"),
    path("runs/new/estimate/", estimate.recipe_estimate, name="estimate"),
    path("runs/<slug:slug>/", runs_pages.run_page, name="run"),
    path("runs/<slug:slug>/manage/", manage.manage_run, name="manage"),
    path("runs/<slug:slug>/edit/", drafts.edit_run, name="edit"),
    path("runs/<slug:slug>/delete/", manage.delete_run, name="delete"),
    path("runs/<slug:slug>/extend/", manage.extend_run, name="extend"),
    path("runs/<slug:slug>/texts/", sources.add_source, name="add_source"),
    path("runs/<slug:slug>/texts/<uuid:source>/", sources.remove_source, name="remove_source"),
    path("runs/<slug:slug>/model/", sources.set_base, name="set_base"),
    path("runs/<slug:slug>/mix/", sources.mix_sources, name="mix"),
    path("runs/<slug:slug>/announce/", manage.announce, name="announce"),
    path("runs/<slug:slug>/finish/", manage.end_run, name="finish"),
    path("runs/<slug:slug>/members/", manage.add_member, name="members"),
    path("runs/<slug:slug>/members/<int:member_id>/", manage.remove_member, name="member"),
    path("runs/<slug:slug>/removed/", manage.remove_person, name="removals"),
    path("runs/<slug:slug>/removed/<int:member_id>/", manage.let_back, name="removal"),
    path("runs/<slug:slug>/invitations/", manage.create_invitation, name="invitations"),
    path("runs/<slug:slug>/invitations/<int:invitation_id>/", manage.revoke_invitation, name="invitation"),
    path("runs/<slug:slug>/join/<str:secret>/", invitations.join, name="join"),
    path("uploads/", uploads.begin, name="uploads"),
    path("uploads/<uuid:upload_id>/", uploads.go_on, name="upload"),
    path("runs/<slug:slug>/publish/", publish.publish_run, name="publish"),
    path("runs/<slug:slug>/release/", publish.choose_release, name="release"),
    path("runs/<slug:slug>/named/", publish.name_me, name="named"),
    path("runs/<slug:slug>/notebook.ipynb", notebook.notebook, name="notebook"),
    path("approve/", approve_machine.approve, name="approve"),
    path("download/", install.download_page, name="download"),
    path("download/<str:name>", install.wheel_file, name="wheel"),
    path("runs/<slug:slug>/written/", runs_pages.written_part, name="written"),
    path("runs/<slug:slug>/curve.png", preview.curve_image, name="curve"),
    path("runs/<slug:slug>/curve.csv", curve_table.curve_table, name="curve_table"),
    path("runs/<slug:slug>/feed.json", polled_feed, name="feed"),
    path("runs/<slug:slug>/leaderboard/", leaderboard.standings_page, name="standings"),
    path("runs/<slug:slug>/activity/", activity.activity_page, name="activity"),
    path("runs/<slug:slug>/feed.rss", activity.activity_feed, name="activity_feed"),
    path("runs/<slug:slug>/badge.svg", share.badge, name="badge"),
    path("runs/<slug:slug>/embed/", share.embed, name="embed"),
    path("runs/<slug:slug>/links.json", own_links, name="links"),
    path("runs/<slug:slug>/you.json", leaderboard.own_place, name="you"),
    path("machines/", machines.machine_list, name="machines"),
    path("machines/<uuid:machine_id>/", machines.change_machine, name="machine"),
    path("machines/tokens/", machines.personal_tokens, name="tokens"),
    path("machines/tokens/<int:token_id>/", machines.revoke_personal_token, name="token"),
    path("signup/", login.sign_up, name="signup"),
    path("login/", page_or_form(login.log_in), name="login"),
    path("login/name/", external_login.choose_name, name="choose_name"),
    path("logout/", login.log_out, name="logout"),
    path("account/", account.account_page, name="account"),
    path("account/password/", account.change_password, name="change_password"),
    path("account/outside/<slug:provider_id>/", account.disconnect, name="disconnect"),
    path("account/sessions/", account.end_other_sessions, name="end_sessions"),
    path("password/<str:person_id>/<str:token>/", account.new_password, name="new_password"),
    path("operator/<str:secret>/", first_operator.first_operator, name="operator"),
    path("account/page/", person.show_page, name="show_page"),
    path("account/export.json", leaving.export, name="export"),
    path("account/delete/", leaving.delete_account, name="delete_account"),
    path("people/<str:name>/", person.person_page, name="person"),
    path("people/<str:name>/preview.png", person.preview_image, name="person_preview"),
    path("people/<str:name>/certificate/", person.certificate, name="certificate"),
    path("people/<str:name>/runs/<slug:slug>/", person.rounds_page, name="rounds"),
    path("teams/new/", team.new_team, name="new_team"),
    path("teams/leave/", team.leave, name="leave_team"),
    path("teams/<slug:slug>/", team.team_page, name="team"),
    path("teams/<slug:slug>/link/", team.new_link, name="team_link"),
    path("teams/<slug:slug>/join/<str:secret>/", team.join, name="join_team"),
    path("teams/<slug:slug>/members/<str:name>/", team.remove, name="remove_from_team"),
    path("help/", help_pages.help_index, name="help"),
    path("help/<slug:topic>/", help_pages.help_page, name="help_page"),
    path("styleguide/", styleguide.styleguide, name="styleguide"),
    path("theme/", choose_theme, name="theme"),
    path("healthz", health.alive, name="healthz"),
    path("readyz", health.ready, name="readyz"),
]
