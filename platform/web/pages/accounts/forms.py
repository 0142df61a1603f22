from typing import Any

from django import forms
from django.contrib.auth.forms import AuthenticationForm
from django.utils.translation import gettext_lazy

from accounts.models import Person

NEW = forms.PasswordInput(attrs={"autocomplete": "new-password"})


class NewPasswordForm(forms.Form):
    """A form for a new password, for a user identified by other means."""

    password = forms.CharField(
        label=gettext_lazy("New password"), strip=False, help_text=gettext_lazy("At least 10 characters."), widget=NEW
    )


class NameForm(forms.Form):
    username = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=30,
        help_text=gettext_lazy(
            "Shown next to your contributions. 2 to 30 letters, digits, dots, dashes or underscores."
        ),
        widget=forms.TextInput(attrs={"autocomplete": "username", "autofocus": True}),
    )


class PasswordForm(NewPasswordForm):
    current = forms.CharField(
        label=gettext_lazy("Current password"),
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )
    field_order = ("current", "password")

    def __init__(self, *args: Any, has_password: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not has_password:  # a user who signed up through another site has no password
            self.fields["current"] = forms.CharField(required=False, widget=forms.HiddenInput)


class SignUpForm(forms.Form):
    username = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=30,
        help_text=gettext_lazy(
            "Shown next to your contributions. 2 to 30 letters, digits, dots, dashes or underscores."
        ),
        widget=forms.TextInput(attrs={"autocomplete": "username", "autofocus": True}),
    )
    password = forms.CharField(
        label=gettext_lazy("Password"),
        strip=False,
        help_text=gettext_lazy(
            "At least 10 characters. It cannot be reset by e-mail, so keep it in a password manager."
        ),
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )


class LoginForm(AuthenticationForm):
    error_messages = {  # noqa: RUF012 (Django's own way)
        "invalid_login": gettext_lazy("Wrong name or password."),
        "inactive": gettext_lazy("This account was closed by an operator of this site. Ask the operator why."),
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["username"].label = gettext_lazy("Name")

    def get_invalid_login_error(self) -> forms.ValidationError:
        """Return the error for a closed account only if the user knows that account's password."""
        closed = Person.objects.filter(username=self.cleaned_data["username"], is_active=False).first()
        if closed is not None and closed.check_password(self.cleaned_data["password"]):
            return forms.ValidationError(self.error_messages["inactive"], code="inactive")
        return super().get_invalid_login_error()


class TokenForm(forms.Form):
    label = forms.CharField(label=gettext_lazy("Name"), max_length=60)


class MachineNameForm(forms.Form):
    name = forms.CharField(max_length=60)
