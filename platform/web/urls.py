"""Addresses of pages."""

from django.urls import path

from web import approval, health, install, machines, notebook, operators, people, runs_pages

app_name = "web"
urlpatterns = [
    path("", runs_pages.run_list, name="runs"),
    path("runs/new/", runs_pages.new_run, name="new_run"),
    path("runs/<slug:slug>/", runs_pages.run_page, name="run"),
    path("runs/<slug:slug>/manage/", runs_pages.manage_run, name="manage"),
    path("runs/<slug:slug>/notebook.ipynb", notebook.notebook, name="notebook"),
    path("approve/", approval.approve, name="approve"),
    path("download/", install.download_page, name="download"),
    path("download/<str:name>", install.wheel_file, name="wheel"),
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
