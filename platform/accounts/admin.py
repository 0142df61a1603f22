"""Admin pages for people and machines. Rows cannot be deleted, so that contributions keep their contributors' names."""

from typing import Any

from allauth.account.models import EmailAddress
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialToken
from django.contrib import admin, messages
from django.contrib.auth.models import Group
from django.db.models import QuerySet
from django.http import HttpRequest

from accounts import deactivation, services
from accounts.models import RELAY_KEEPER, Machine, Person
from peer_agent.protocol.errors import Problem

# This site has only two permission levels, operator and everyone else, so it needs no groups. allauth's tables either
# stay empty or are replaced by the site's environment settings.
admin.site.unregister([Group, EmailAddress, SocialAccount, SocialApp, SocialToken])


class Kept(admin.ModelAdmin):  # type: ignore[type-arg] # Django's class takes no parameters at run time
    """The base class for admin pages whose rows can be neither created nor deleted."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        del request
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        del request, obj
        return False


@admin.register(Person)
class PersonAdmin(Kept):
    """The admin page for closing or reopening accounts, making people operators, and creating password links."""

    list_display = ("username", "is_active", "is_superuser", "date_joined", "last_login")
    list_filter = ("is_active", "is_superuser")
    search_fields = ("username",)
    ordering = ("username",)
    fields = ("username", "is_superuser", "is_active", "date_joined", "last_login")
    readonly_fields = ("username", "is_active", "date_joined", "last_login")
    actions = ("close", "open", "password_link")

    def save_model(self, request: HttpRequest, obj: Person, form: Any, change: bool) -> None:  # noqa: FBT001
        """Save with `is_staff` matching `is_superuser`, since Django's admin and relay approvals check `is_staff`."""
        obj.is_staff = obj.is_superuser
        super().save_model(request, obj, form, change)

    @admin.action(description="Close: end sessions, revoke machines and tokens")
    def close(self, request: HttpRequest, chosen: QuerySet[Person]) -> None:
        """Close the selected accounts, except the acting operator's own and the relay owner's."""
        for person in chosen.exclude(username=request.user.get_username()).exclude(username=RELAY_KEEPER):
            deactivation.close_account(person=person)
            self.message_user(request, f"The account of {person} is closed.")

    @admin.action(description="Reopen (its owner can restore machines)")
    def open(self, request: HttpRequest, chosen: QuerySet[Person]) -> None:
        for person in chosen.filter(is_active=False):
            deactivation.open_account(person=person)
            self.message_user(request, f"The account of {person} is open.")

    @admin.action(description="Create a link for a new password")
    def password_link(self, request: HttpRequest, chosen: QuerySet[Person]) -> None:
        """Show a password reset link for each selected person. Each link works once and expires after a day."""
        for person in chosen:
            try:
                link = request.build_absolute_uri(deactivation.reset_path(username=person.username))
            except Problem as problem:
                self.message_user(request, str(problem), messages.ERROR)
            else:
                self.message_user(request, f"For {person} alone, once, within a day: {link}")


@admin.register(Machine)
class MachineAdmin(Kept):
    list_display = ("name", "person", "kind", "created_at", "last_seen_at", "revoked_at")
    list_filter = ("kind", ("revoked_at", admin.EmptyFieldListFilter))
    list_select_related = ("person",)
    search_fields = ("name", "person__username")
    ordering = ("-created_at",)
    fields = readonly_fields = ("id", "name", "person", "kind", "created_at", "last_seen_at", "revoked_at", "is_barred")
    actions = ("revoke", "let_back")

    @admin.action(description="Revoke: disconnect within seconds")
    def revoke(self, request: HttpRequest, chosen: QuerySet[Machine]) -> None:
        for machine in chosen:
            services.bar_machine(machine=machine)
        self.message_user(request, "They are revoked; their keys come back under no name until an operator lets them.")

    @admin.action(description="Restore")
    def let_back(self, request: HttpRequest, chosen: QuerySet[Machine]) -> None:
        for machine in chosen:
            services.unbar_machine(machine=machine)
        self.message_user(request, "They may work again.")
